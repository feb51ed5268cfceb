// A conversation with the model, in which every token shows whether it was drafted.
import {byId, element} from "./panels.js";
import {events, refusal} from "./stream.js";
import {count, percent, round} from "./words.js";

const NEAR = 60;                                // pixels from the end of the log within which it follows the text

export class Chat {
  // headers: gives those to send. locked(): the server wants a key.
  constructor(headers, locked) {
    this.headers = headers;
    this.locked = locked;
    this.model = "";
    this.messages = [];
    this.running = null;                        // of the answer under way
    this.log = byId("log");
    byId("ask").addEventListener("submit", event => {
      event.preventDefault();
      this.running ? this.running.abort() : this.send();
    });
    byId("text").addEventListener("keydown", event => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running) this.send();
    });
    byId("clear").addEventListener("click", () => this.clear());
  }

  // chats: whether the model has a chat template.
  open(model, chats) {
    this.model = model;
    byId("text").disabled = byId("send").disabled = !chats;
    if (!chats) byId("text").placeholder = "This model has no chat template";
  }

  clear() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren();
    byId("text").focus();
  }

  async send() {
    const text = byId("text").value.trim(), messages = this.messages;
    if (!text || !this.model) return;
    byId("text").value = "";
    messages.push({role: "user", content: text});
    const into = element("div", "answer");
    this.log.append(element("div", "you", text), into);
    this.busy(new AbortController());
    try {
      await this.answer(messages, into);
    } catch (error) {
      this.note(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
    }
    if (into.textContent) messages.push({role: "assistant", content: into.textContent});
    else messages.pop();
    this.busy(null);
  }

  busy(running) {
    this.running = running;
    this.log.setAttribute("aria-busy", String(Boolean(running)));
    byId("send").textContent = running ? "Stop" : "Send";
    this.log.scrollTop = this.log.scrollHeight;
  }

  body(messages) {
    const temperature = byId("temperature").value, enabled = byId("drafts").value !== "off";
    return JSON.stringify({
      model: this.model, messages, stream: true, stream_options: {include_usage: true},
      speculation: {report: true, enabled}, ...(temperature ? {temperature: Number(temperature)} : {}),
    });
  }

  async answer(messages, into) {
    const {signal} = this.running, begun = performance.now();
    const headers = {"Content-Type": "application/json", ...this.headers()};
    const response = await fetch("v1/chat/completions", {method: "POST", headers, body: this.body(messages), signal});
    if (response.status === 401) this.locked();
    if (!response.ok) throw new Error(await refusal(response));
    let first = 0;
    for await (const {data} of events(response)) {
      if (data === "[DONE]") break;
      const value = JSON.parse(data);
      if (value.error) throw new Error(value.error.message);
      for (const piece of value.choices[0]?.pieces ?? []) {
        first ||= performance.now();
        this.append(into, piece);
      }
      if (value.usage) this.note(told(value.usage, first - begun, performance.now() - first));
    }
  }

  append(into, {text, drafted}) {
    const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR;
    into.append(element("span", drafted ? "piece drafted" : "piece", text));
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }

  note(text, bad = false) {
    this.log.append(element("div", bad ? "note bad" : "note", text));
    this.log.scrollTop = this.log.scrollHeight;
  }
}

// wait, lasted: milliseconds to the first token, and from it to the last
function told(usage, wait, lasted) {
  const {completion_tokens: tokens, completion_tokens_details: details, drafts} = usage;
  const parts = [`${tokens} tokens after ${round(wait / 1000, 2)} s`];
  if (tokens > 1 && lasted > 0) parts.push(`${count(1000 * (tokens - 1) / lasted)} a second`);
  parts.push(`${percent(details.accepted_prediction_tokens / Math.max(1, tokens))} drafted`);
  if (drafts) parts.push(`${drafts.tokens_per_round.toFixed(2)} a round`);
  return parts.join(" · ");
}
