// What pulses told within the last minutes, as columns that plots read. Knows no element of the page.

export const SPAN = 180;                        // seconds kept

export class History {
  constructor() {
    this.pulses = [];                           // {at: seconds, ...pulse}, oldest first
  }

  add(pulse, at) {
    if (pulse.seconds > 0) this.pulses.push({at, ...pulse});
    while (this.pulses.length && this.pulses[0].at < at - SPAN) this.pulses.shift();
  }

  // Pulses of the last so many seconds.
  recent(seconds) {
    const newest = this.pulses.at(-1)?.at ?? 0;
    return this.pulses.filter(pulse => pulse.at > newest - seconds);
  }

  // The sum of a field over those.
  sum(seconds, field) {
    return this.recent(seconds).reduce((total, pulse) => total + field(pulse), 0);
  }

  // [x, ...] for a plot: x in seconds before now, then a column for each field; null where a field says so. Every pulse
  // has two points, where its time begins and where it ends, so that one alone shows as well.
  columns(now, fields) {
    const begins = (pulse, i) => Math.max(pulse.at - pulse.seconds, this.pulses[i - 1]?.at ?? -Infinity);
    const x = this.pulses.flatMap((pulse, i) => [begins(pulse, i) - now, pulse.at - now]);
    return [x, ...fields.map(field => this.pulses.flatMap(pulse => Array(2).fill(field(pulse))))];
  }

  // Drafts of the last so many seconds, by source and key: {name, rounds, offered, reached, accepted}.
  drafts(seconds) {
    const groups = new Map();
    for (const one of this.recent(seconds).flatMap(pulse => pulse.drafts)) {
      const name = `${one.source}, ${one.key} rows`;
      const group = groups.get(name) ?? {name, rounds: 0, offered: [], reached: [], accepted: []};
      group.rounds += one.rounds;
      for (const list of ["offered", "reached", "accepted"]) {
        one[list].forEach((value, place) => group[list][place] = (group[list][place] ?? 0) + value);
      }
      groups.set(name, group);
    }
    return [...groups.values()];
  }
}

// Columns laid on top of each other, the last one at the bottom, as filled lines are painted.
export function stacked([x, ...columns]) {
  const sums = x.map(() => 0);
  const piled = columns.toReversed().map(column => column.map((value, i) => {
    if (value === null) return null;
    return sums[i] += value;
  }));
  return [x, ...piled.toReversed()];
}
