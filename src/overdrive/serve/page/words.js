// Numbers and plans in words. Knows no element of the page.

export const round = (value, digits) => Number(value.toPrecision(digits)).toLocaleString("en");
export const count = value => value >= 1000 ? Math.round(value).toLocaleString("en") : round(value, 3);
export const percent = share => `${Math.round(100 * share)} %`;
export const milliseconds = seconds => `${round(1000 * seconds, 3)} ms`;
export const plural = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
export const short = n => n < 1024 ? String(n) : `${round(n / 1024, 2)}K`;

// "2 % more", "as much": of `what` compared with what was expected
export function compared(ratio, more, less, same) {
  const off = Math.round(100 * (ratio - 1));
  if (!off) return same;
  return off > 0 ? `${off} % ${more}` : `${-off} % ${less}`;
}

// What `--speculation` and `--draft` mean, for the head of the page.
export function setting(facts) {
  if (!facts.drafts) return "no drafts";
  const who = facts.drafter + (facts.draft_model ? ` from ${facts.draft_model.split("/").at(-1)}` : "");
  const most = facts.speculation.startsWith("fixed") ? `${facts.drafts} a row` : `up to ${facts.drafts} a row`;
  return `drafts by ${who}, ${most}, --speculation ${facts.speculation}`;
}

// `fixed:3` on a button.
export function settingInWords(setting) {
  const fixed = /^fixed:(\d+)$/.exec(setting);
  return fixed ? `K = ${fixed[1]}` : setting;
}

// The newest plan: {choice, reason}. now: who decides by now, "" where the server does not say.
export function explain(plan, facts, now) {
  const whole = `K = ${plan.drafts}`, rows = plural(plan.rows, "row");
  switch (plan.rule) {
    case "": return {choice: "No step has run yet", reason: idle(facts)};
    case "prefill": return {choice: "Only prompts are read", reason: "Nothing is drafted before an answer has begun."};
    case "fixed": return {choice: plan.rows ? `${whole} for ${rows}` : whole, reason: fixed(facts, now)};
    case "gear": return {choice: `${whole} for ${rows}`, reason: `${meaning(plan)} ${expected(plan)} ${second(plan)}`};
    case "probe": return {
      choice: `${whole} for ${rows}, to try it`,
      reason: `One step with more drafts than usual, so that it stays known how many are right. ${expected(plan)}`,
    };
    default: return {choice: `${whole} for ${rows}`, reason: `By the rule “${plan.rule}”. ${expected(plan)}`};
  }
}

const meaning = plan => plan.drafts
  ? `Each row drafts ${plural(plan.drafts, "token")}, one pass of the model checks them all.`
  : "Drafts would cost more time than they save.";

function expected({expected_tokens: tokens, expected_seconds: seconds}) {
  if (!seconds) return "";
  const yielded = `${round(tokens, 3)} ${tokens === 1 ? "token" : "tokens"}`;
  return `Expected: ${yielded} in ${milliseconds(seconds)}, ${count(tokens / seconds)} a second.`;
}

function second(plan) {
  if (!plan.expected_seconds || plan.runner_up === plan.drafts) return "";
  const ratio = plan.runner_up_score / (plan.expected_tokens / plan.expected_seconds);
  const off = compared(ratio, "more", "less", "as much");
  const other = `K = ${plan.runner_up}`;
  if (ratio > 1.005) return `${other} looks like ${off}, but not yet for long enough to pay for the change.`;
  return `Next best: ${other} with ${count(plan.runner_up_score)} a second, ${off}.`;
}

function fixed(facts, now) {
  if (!facts.drafts) return idle(facts);
  if (now && now !== facts.speculation) return `The same in every step, whatever the load: set by hand to ${now}.`;
  return `The same in every step, as --speculation ${facts.speculation} says, whatever the load.`;
}

function idle(facts) {
  if (facts.drafts) return "It is planned anew for every step, from the load and from what was accepted lately.";
  if (facts.speculation === "off") return "Nothing is drafted: --speculation off.";
  return "Nothing is drafted: nobody writes drafts (--draft none).";
}

// How plans came true lately; `tokens` and `seconds` are found / expected.
export function cameTrue({tokens, seconds}) {
  if (!tokens || !seconds) return "";
  const more = compared(tokens, "more tokens", "fewer tokens", "as many tokens");
  const longer = compared(seconds, "longer", "less time", "as long");
  return `Against what was expected, steps lately yielded ${more} and took ${longer}.`;
}

// One cell of the map of loads.
export function cellInWords(rows, context, choice, weighed) {
  const load = `${plural(rows, "request")} at ${context.toLocaleString("en")} tokens${rows > 1 ? " each" : ""}`;
  if (!choice) return `${load}: more than the KV cache holds; some would wait.`;
  if (!weighed) return `${load}: K = ${choice.drafts}, as at every load.`;
  const gain = choice.drafts ? `, ${choice.gain.toFixed(2)} times what it is without drafts` : "";
  const other = choice.runner_up === choice.drafts ? "" :
    ` Next best: K = ${choice.runner_up}, ${compared(choice.runner_up_rate / choice.rate, "more", "less", "as much")}.`;
  return `${load}: K = ${choice.drafts}, ${count(choice.rate)} tokens a second expected${gain}.${other}`;
}
