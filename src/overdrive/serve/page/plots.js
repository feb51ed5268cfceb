// Plots over time, and the colours of K. uPlot (vendor/) is a global of the page.
import {SPAN, stacked} from "./history.js";

const HEIGHT = 150;
const SHORTEST = 60;                            // seconds that are shown at least
const TIMES = [10, 15, 30, 60];                 // seconds between marks
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const FONT = "11px system-ui, sans-serif";
const NICE = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];    // tops of an axis, times a power of ten

export const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The colour of K and of what is written on it, from light to dark over `plans`; grey for K = 0.
export function shade(k, plans) {
  if (!k) return {fill: color("--none"), ink: color("--ink")};
  const place = Math.max(0, plans.filter(plan => plan <= k).length - 1);
  const share = plans.length > 1 ? place / (plans.length - 1) : 0.5;
  const light = 0.87 - 0.44 * share;
  return {fill: `oklch(${light} ${0.1 + 0.06 * share} ${185 + 85 * share})`, ink: light > 0.57 ? "#05070a" : "#ffffff"};
}

// One plot. lines: [{label, stroke, fill?}]. options: format(value); least: smallest top of the axis; top: its fixed top;
// cut: whether rare peaks may leave the plot; whole: whether values are whole numbers; pile: whether the lines are parts
// of a whole, laid on top of each other, the last one at the bottom.
export class Plot {
  constructor(place, lines, options) {
    this.place = place;
    this.options = options;
    this.columns = [[], ...lines.map(() => [])];
    place.replaceChildren();
    place.classList.toggle("pile", Boolean(options.pile));
    this.plot = new uPlot(this.settings(lines), this.columns, place);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(place);
  }

  settings(lines) {
    const axis = {stroke: color("--soft"), font: FONT, grid: {stroke: color("--grid"), width: 1}, ticks: {show: false}};
    return {
      width: this.width(), height: HEIGHT, padding: [8, 12, 0, 0],
      cursor: {y: false, drag: {x: false, y: false}, sync: {key: "time"}},
      scales: {
        x: {time: false, range: (_, oldest) => [-Math.min(SPAN, Math.max(SHORTEST, -(oldest ?? 0))), 0]},
        y: {range: (_, __, most) => [0, this.top(most)]},
      },
      axes: [
        {...axis, size: 26, incrs: TIMES, values: (_, marks) => marks.map(mark => mark ? `${mark} s` : "now")},
        {...axis, size: 46, space: 34, ...(this.options.whole ? {incrs: WHOLE} : {}),
          values: (_, marks) => marks.map(mark => mark.toLocaleString("en"))},
      ],
      series: [{}, ...lines.map(({label, stroke, fill}, i) => ({
        label, stroke, fill, width: 1.5, points: {show: false}, ...(this.options.pile ? {width: 0} : {}),
        value: (_, __, ___, at) => this.told(this.columns[i + 1][at]),
      }))],
    };
  }

  told(value) {
    return value === undefined || value === null ? "–" : this.options.format(value);
  }

  top(most) {
    if (this.options.top) return this.options.top;
    const found = this.options.cut ? this.usual(most ?? 0) : most ?? 0;
    const wanted = Math.max(found, this.options.least), power = 10 ** Math.floor(Math.log10(wanted));
    return power * NICE.find(step => step * power >= wanted - 1e-9);
  }

  // What nine of ten values stay well below, or `most` where that is less.
  usual(most) {
    const heights = this.plot ? this.plot.data[1].filter(value => value !== null).sort((a, b) => a - b) : [];
    return Math.min(most, 1.5 * (heights[Math.floor(0.9 * heights.length)] ?? most));
  }

  width() {
    return Math.max(200, this.place.clientWidth);
  }

  fit() {
    if (this.width() !== this.plot.width) this.plot.setSize({width: this.width(), height: HEIGHT});
  }

  // columns: [x, ...one for each line], x in seconds before now.
  draw(columns) {
    this.columns = columns;
    this.plot.setData(this.options.pile ? stacked(columns) : columns);
    if (this.plot.cursor.left < 0) this.plot.setLegend({idx: columns[0].length - 1}, false);
  }

  close() {
    this.observer.disconnect();
    this.plot.destroy();
  }
}
