// The page: what the server tells, and where it is shown.
import {Chat} from "./chat.js";
import {History} from "./history.js";
import {Lever} from "./lever.js";
import {LoadMap} from "./map.js";
import {byId, showAccepted, showPlan, Tiles, write} from "./panels.js";
import {color, Plot, shade} from "./plots.js";
import {follow} from "./stream.js";
import {count, round, setting} from "./words.js";

const PARTS = ["draft", "forward", "accept", "absorb", "host"];
const PART_COLORS = ["--amber", "--blue", "--green", "--violet", "--none"];
const STATES = {
  live: "good", loading: "wait", draining: "wait", restarting: "bad", failed: "bad", reconnecting: "bad", locked: "wait",
};
const TOLD = ["loading", "draining", "restarting", "failed"];  // by the server, before it ends a stream
const TROUBLE = ["restarting", "failed"];

const history = new History();
const tiles = new Tiles(byId("tiles"));
const map = new LoadMap(byId("map"));
let key = "", facts = null, newest = null, atlas = null, plots = [], said = "", due = false, unlocking = null;

const headers = () => key ? {Authorization: `Bearer ${key}`} : {};
const chat = new Chat(headers, locked), lever = new Lever(headers, locked);
const now = () => performance.now() / 1000;

// ---- what the server tells -----------------------------------------------------------------------------------------
follow("live", headers, {
  hello(told) {
    if (facts && facts.started !== told.started) history.pulses = [];
    facts = told;
    const device = `${told.device}, ${told.precision}${told.device === "cpu" ? `, ${told.threads} threads` : ""}`;
    const parts = [told.model, told.architecture, device, setting(told), `Overdrive ${told.version}`];
    write(byId("facts"), parts.join(" · "));
    chat.open(told.model, told.chats);
    lever.open(told);
    build();
  },
  map(told) {
    atlas = told;
    map.show(atlas, facts);
  },
  pulse(told) {
    newest = told;
    history.add(told, now());
    if (said !== "live" && said !== "draining") state("live");
    if (!due) requestAnimationFrame(draw);
    due = true;
  },
  status({status, reason}) {
    if (!facts) write(byId("facts"), reason);
    state(status, TROUBLE.includes(status) ? `The engine is gone: ${reason}. This page waits for the next.` : "");
  },
  lost(reason) {
    if (reason || !TOLD.includes(said)) state("reconnecting");
  },
  locked,
});

// Asks for the key; resolves when one is there, for all that wait.
function locked() {
  if (unlocking) return unlocking;
  write(byId("refused"), key ? "That key is not the server’s." : "");
  key = "";
  byId("unlock").hidden = false;
  byId("key").focus();
  state("locked");
  return unlocking = new Promise(done => byId("unlock").addEventListener("submit", event => {
    event.preventDefault();
    key = byId("key").value.trim();
    byId("key").value = "";
    byId("unlock").hidden = true;
    unlocking = null;
    done();
  }, {once: true}));
}

function state(word, trouble = "") {
  said = word;
  const byChance = facts?.simulated_acceptance
    ? "Drafts are accepted by chance (--simulate-acceptance): texts mean nothing." : "";
  write(byId("status"), word);
  byId("status").className = `pill ${STATES[word] ?? ""}`;
  write(byId("notice"), trouble || byChance);
  byId("notice").hidden = !(trouble || byChance);
  document.body.classList.toggle("stale", word !== "live" && word !== "draining");
}

// ---- what is shown -------------------------------------------------------------------------------------------------
const SPEED = pulse => pulse.seconds ? pulse.generated / pulse.seconds : null;
const ROUNDS = pulse => pulse.rounds ? pulse.generated / pulse.rounds : null;
const share = part => pulse => 100 * part(pulse) / Math.max(1, pulse.pages_total);

// [place, lines, options, fields], a field for each line
function charts() {
  const ks = [0, ...facts.plans], line = (label, name) => ({label, stroke: color(name), fill: undefined});
  const filled = (label, fill) => ({label, stroke: fill, fill});
  const amount = {format: count, least: 10}, whole = {format: value => String(value), least: 4, whole: true};
  return [
    ["speed", [{...line("tokens/s", "--blue"), fill: color("--blue-soft")}], amount, [SPEED]],
    ["gears", ks.map(k => filled(`K = ${k}`, shade(k, facts.plans).fill)).toReversed(),
      {format: value => `${Math.round(value)} %`, top: 100, pile: true}, ks.map(k => stepsOf(k, ks)).toReversed()],
    ["rounds", [{...line("tokens a round", "--teal")}], {format: value => value.toFixed(2), least: 2}, [ROUNDS]],
    ["parts", PARTS.map((name, i) => filled(name, color(PART_COLORS[i]))).toReversed(),
      {format: value => round(value, 3), least: 1, cut: true, pile: true}, PARTS.map((_, i) => timeOf(i)).toReversed()],
    ["load", [line("running", "--blue"), line("waiting", "--amber")],
      whole, [pulse => pulse.running, pulse => pulse.waiting]],
    ["cache", [line("held by requests", "--blue"), line("prefix cache alone", "--violet")],
      {format: value => `${round(value, 3)} %`, least: 10},
      [share(pulse => pulse.pages_used), share(pulse => pulse.pages_cached)]],
  ];
}

// The share of steps with K drafts; a K that was not announced counts as the next smaller one.
function stepsOf(k, ks) {
  const next = ks[ks.indexOf(k) + 1] ?? Infinity;
  return pulse => {
    const total = pulse.plans.reduce((a, b) => a + b, 0);
    return total ? 100 * pulse.plans.slice(k, next).reduce((a, b) => a + b, 0) / total : null;
  };
}

const timeOf = part => pulse => {
  if (!pulse.steps) return null;
  return 1000 * (part < pulse.launch_seconds.length ? pulse.launch_seconds[part] : pulse.host_seconds) / pulse.steps;
};

function build() {
  plots.forEach(({plot}) => plot.close());
  plots = charts().map(([id, lines, options, fields]) => ({plot: new Plot(byId(id), lines, options), fields}));
}

function draw() {
  due = false;
  if (!facts || !newest) return;
  const at = now();
  tiles.show(newest, history);
  showPlan(newest, history, facts);
  lever.show(newest.speculation || facts.speculation);
  showAccepted(byId("accepted"), history.drafts(30), newest.plan.survival);
  map.here(newest.running ? newest.plan.rows : 0, newest.plan.context);
  for (const {plot, fields} of plots) plot.draw(history.columns(at, fields));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!facts) return;
  build();
  if (atlas) map.show(atlas, facts);
  draw();
});
