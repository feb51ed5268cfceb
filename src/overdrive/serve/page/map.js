// The map of loads: K for every number of requests and length of context, as the engine's own planner chooses it.
import {byId, element, write} from "./panels.js";
import {shade} from "./plots.js";
import {cellInWords, short} from "./words.js";

const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
const ORIGINS = {measured: "measured at this start", stored: "measured at an earlier start"};

export class LoadMap {
  constructor(table) {
    this.table = table;
    this.cells = [];                            // [contexts][requests] of td
    this.at = [0, 0];                           // the cell that the keyboard stands on
    this.asked = null;                          // the cell pointed at, whose words stand below
    this.now = null;                            // the cell of the load of now
    table.addEventListener("keydown", event => this.move(event));
    table.addEventListener("pointerleave", () => this.tell(null));
    table.addEventListener("focusout", () => this.tell(null));
  }

  // map: as the server sends it. facts: of the hello.
  show(map, facts) {
    const focused = this.table.contains(document.activeElement);
    this.map = map;
    this.facts = facts;
    write(byId("map-about"), this.about());
    this.table.setAttribute("role", "grid");
    const head = element("thead"), line = element("tr"), body = element("tbody");
    const over = element("tr"), requests = header("colgroup", "requests at once", "");
    requests.colSpan = map.rows.length;
    over.append(element("td"), requests);
    line.append(header("col", "context", "tokens of each request"));
    line.append(...map.rows.map(rows => header("col", String(rows), `${rows} requests`)));
    head.append(over, line);
    this.cells = map.cells.map((choices, i) => {
      const row = element("tr"), cells = choices.map((choice, j) => this.cell(choice, i, j));
      row.append(header("row", short(map.contexts[i]), `${map.contexts[i]} tokens each`), ...cells);
      body.append(row);
      return cells;
    });
    const caption = element("caption", "hidden", "Drafts per row, by requests (columns) and tokens of context (rows)");
    this.table.replaceChildren(caption, head, body);
    this.at = [Math.min(this.at[0], this.cells.length - 1), Math.min(this.at[1], map.rows.length - 1)];
    this.cells[this.at[0]][this.at[1]].tabIndex = 0;
    if (focused) this.cells[this.at[0]][this.at[1]].focus();
    this.mark();
  }

  about() {
    const {map, facts} = this, legend = "Dashed: more than the KV cache holds.";
    if (!map.weighed) return `K is the same at every load. ${legend}`;
    const seen = map.learnt ? "the acceptance seen lately" : "the acceptance that is assumed before any was seen";
    const origin = ORIGINS[facts.costs] ?? "measured here";
    return `What the planner comes to, by step times ${origin} and ${seen}. ${legend} Outlined: now.`;
  }

  cell(choice, i, j) {
    const made = element("td", choice ? "" : "full", choice ? String(choice.drafts) : "–");
    if (choice) {
      const {fill, ink} = shade(choice.drafts, this.facts.plans);
      made.style.background = fill;
      made.style.color = ink;
    }
    made.tabIndex = -1;
    made.addEventListener("pointerenter", () => this.tell([i, j]));
    made.addEventListener("click", () => this.stand(i, j));
    made.addEventListener("focus", () => this.tell([i, j]));
    return made;
  }

  // Outlines the cell nearest to `rows` requests with `context` tokens in all; none while nothing decodes.
  here(rows, context) {
    if (!this.cells.length) return;
    const nearest = (sizes, size) => {
      const off = sizes.map(one => Math.abs(Math.log(one / size)));
      return off.indexOf(Math.min(...off));
    };
    this.now = rows ? [nearest(this.map.contexts, Math.max(1, context / rows)), nearest(this.map.rows, rows)] : null;
    this.mark();
  }

  mark() {
    this.table.querySelector(".here")?.classList.remove("here");
    if (this.now) this.cells[this.now[0]]?.[this.now[1]]?.classList.add("here");
    this.tell(this.asked);
  }

  tell(place) {
    this.asked = place;
    const [i, j] = place ?? this.now ?? [0, 0];
    if (this.cells[i]?.[j]) write(byId("map-cell"), this.words(i, j, place ? "" : this.now ? "Now near: " : ""));
  }

  words(i, j, opening) {
    const {map} = this;
    return opening + cellInWords(map.rows[j], map.contexts[i], map.cells[i][j], map.weighed);
  }

  move(event) {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const [i, j] = [this.at[0] + step[0], this.at[1] + step[1]];
    if (this.cells[i]?.[j]) this.stand(i, j);
  }

  stand(i, j) {
    this.cells[this.at[0]][this.at[1]].tabIndex = -1;
    this.at = [i, j];
    this.cells[i][j].tabIndex = 0;
    this.cells[i][j].focus();
  }
}

function header(scope, text, label) {
  const made = element("th", "", text);
  made.scope = scope;
  if (label) made.title = label;
  return made;
}
