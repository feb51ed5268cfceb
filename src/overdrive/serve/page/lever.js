// The lever: who decides how much is drafted, for everybody, where the server lets its clients change that.
import {byId, element, write} from "./panels.js";
import {refusal} from "./stream.js";
import {settingInWords} from "./words.js";

export class Lever {
  // headers: gives those to send. locked(): the server wants a key.
  constructor(headers, locked) {
    this.headers = headers;
    this.locked = locked;
    this.inputs = new Map();                    // by setting
    byId("lever").addEventListener("change", event => this.shift(event.target.value));
  }

  // Offers what the server can be set to; nothing where it cannot be set.
  open(facts) {
    byId("lever").hidden = !facts.control || !facts.drafts;
    const settings = new Set([facts.speculation, "off", ...facts.plans.map(k => `fixed:${k}`)]);
    this.inputs = new Map([...settings].map(setting => [setting, element("input")]));
    byId("positions").replaceChildren(...[...this.inputs].map(([setting, input]) => {
      const label = element("label");
      Object.assign(input, {type: "radio", name: "setting", value: setting});
      label.append(input, element("span", "", settingInWords(setting)));
      return label;
    }));
  }

  // Marks what holds now; nothing where others have set what is not offered here.
  show(setting) {
    for (const [value, input] of this.inputs) input.checked = value === setting;
  }

  async shift(speculation) {
    const headers = {"Content-Type": "application/json", ...this.headers()};
    try {
      const response = await fetch("speculation", {method: "PUT", headers, body: JSON.stringify({speculation})});
      if (response.status === 401) this.locked();
      write(byId("stuck"), response.ok ? "" : await refusal(response));
    } catch (error) {
      write(byId("stuck"), error.message);
    }
  }
}
