// What is shown beside the plots: the tiles, the plan in words, and acceptance by position.
import {cameTrue, count, explain, milliseconds, percent, round} from "./words.js";

export const byId = id => document.getElementById(id);

export function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}

// Sets a text only when it is another: what does not change is neither laid out nor read out again.
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

const TILES = ["Tokens/s", "Requests", "Tokens per round", "Drafts accepted", "Time of a step", "KV cache"];

export class Tiles {
  constructor(list) {
    this.values = TILES.map(name => {
      const card = element("div", "card"), told = element("dd"), value = element("span"), more = element("small");
      told.append(value, more);
      card.append(element("dt", "", name), told);
      list.append(card);
      return [value, more];
    });
  }

  show(pulse, history) {
    const sum = (seconds, name) => history.sum(seconds, one => one[name]);
    const seconds = sum(3, "seconds"), rounds = sum(10, "rounds"), steps = sum(10, "steps");
    const drafts = history.drafts(10), all = name => drafts.flatMap(one => one[name]).reduce((a, b) => a + b, 0);
    const offered = all("offered"), pages = Math.max(1, pulse.pages_total);
    const device = history.sum(10, one => one.launch_seconds.reduce((a, b) => a + b, 0));
    const host = sum(10, "host_seconds"), time = host + device;
    const perSecond = name => seconds ? count(sum(3, name) / seconds) : "–";
    [
      [perSecond("generated"), `and ${perSecond("prefilled")} of prompts`],
      [`${pulse.running}`, pulse.waiting ? `${pulse.waiting} waiting` : "none waiting"],
      [rounds ? (sum(10, "generated") / rounds).toFixed(2) : "–", "1 without drafts"],
      [offered ? percent(all("accepted") / offered) : "–", offered ? "of those offered" : "none offered lately"],
      [steps ? milliseconds(time / steps) : "–", steps ? `host ${percent(host / time)}` : "no steps lately"],
      [percent(pulse.pages_used / pages), `${percent(pulse.pages_cached / pages)} cached`],
    ].forEach(([value, more], i) => {
      write(this.values[i][0], value);
      write(this.values[i][1], more);
    });
  }
}

export function showPlan(pulse, history, facts) {
  const {choice, reason} = explain(pulse.plan, facts, pulse.speculation);
  const idle = pulse.plan.rule && !pulse.running && !pulse.steps;
  write(byId("choice"), idle ? `${choice}, idle since` : choice);
  write(byId("reason"), reason);
  const lately = history.recent(10).map(one => one.plan).filter(plan => plan.tokens && plan.seconds);
  const mean = name => lately.reduce((total, plan) => total + plan[name], 0) / lately.length;
  write(byId("record"), lately.length ? cameTrue({tokens: mean("tokens"), seconds: mean("seconds")}) : "");
}

// Bars by position, for every source and kind of rows that lately drafted; a mark where the planner expected the end.
export function showAccepted(place, drafts, survival) {
  if (!drafts.length) {
    place.replaceChildren(element("p", "soft", "Nothing was drafted."));
    return;
  }
  place.replaceChildren(...drafts.map(group => {
    const box = element("div", "group");
    box.append(element("h3", "", `${group.name}, ${round(group.rounds, 4)} rounds`));
    group.offered.forEach((offered, i) => {
      if (offered) box.append(bar(i, group.accepted[i] / offered, group.accepted[i] / group.reached[i], survival[i]));
    });
    return box;
  }));
  const expected = survival.some(Boolean) ? " The mark is what the planner expects of all rows." : "";
  const shares = "Share of offered drafts; in brackets, of those whose forerunners were right.";
  place.append(element("p", "soft small", shares + expected));
}

function bar(position, share, judged, expected) {
  const line = element("div", "bar"), track = element("div", "track"), filled = element("i");
  filled.style.width = `${100 * share}%`;
  track.append(filled);
  if (expected) {
    const mark = element("b");
    mark.style.left = `${100 * expected}%`;
    mark.title = `expected ${percent(expected)}`;
    track.append(mark);
  }
  line.append(element("span", "", `${position + 1}`), track);
  line.append(element("span", "", `${percent(share)} (${judged >= 0 ? percent(judged) : "–"})`));
  return line;
}
