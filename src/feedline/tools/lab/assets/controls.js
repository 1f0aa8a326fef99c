// The form of a view, made of what the view says that may be set; and its values in the address of the page.

function form(place, controls, values, changed) {
  place.replaceChildren();
  const given = { ...Object.fromEntries(controls.map(({ name, default: usual }) => [name, usual])), ...values };
  const set = (name, value) => { given[name] = value; changed({ ...given }); };
  for (const control of controls) place.append(FIELDS[control.kind](control, given[control.name], (value) => set(control.name, value)));
  return given;
}

const FIELDS = {
  number({ name, label, least, most, step, unit }, value, set) {
    const bounds = { min: least, max: most, step };
    const slider = element("input", { type: "range", ...bounds, id: `c-${name}-slider`, "aria-label": label, tabindex: -1 });
    const field = element("input", { type: "number", step: "any", id: `c-${name}`, name });
    slider.value = field.value = value;
    slider.addEventListener("input", () => { field.value = slider.value; set(Number(slider.value)); });
    field.addEventListener("change", () => {
      if (field.value === "") field.value = slider.value;
      slider.value = field.value;
      set(Number(field.value));
    });
    return element("div", {}, element("label", { for: field.id }, unit ? `${label} (${unit})` : label), element("div", { class: "pair" }, slider, field));
  },

  choice({ name, label, options }, value, set) {
    const field = element("select", { id: `c-${name}`, name }, ...options.map((option) => element("option", { value: option }, option)));
    field.value = value;
    field.addEventListener("change", () => set(field.value));
    return element("div", {}, element("label", { for: field.id }, label), field);
  },

  switch({ name, label }, value, set) {
    const field = element("input", { type: "checkbox", id: `c-${name}`, name });
    field.checked = value;
    field.addEventListener("change", () => set(field.checked));
    return element("label", { for: field.id }, field, ` ${label}`);
  },

  text({ name, label }, value, set) {
    const field = element("input", { type: "text", id: `c-${name}`, name, spellcheck: "false", autocomplete: "off" });
    field.value = value;
    field.addEventListener("change", () => set(field.value));
    return element("div", {}, element("label", { for: field.id }, label), field);
  },
};

// #samplers?batch_size=8&shuffle=true
function fromAddress(views) {
  const [name, query = ""] = location.hash.slice(1).split("?");
  const view = views.find((one) => one.name === name) || views[0], values = {};
  for (const [key, text] of new URLSearchParams(query)) {
    const control = view.controls.find((one) => one.name === key);
    if (control) values[key] = control.kind === "number" ? Number(text) : control.kind === "switch" ? text === "true" : text;
  }
  return [view, values];
}

function toAddress(view, values) {
  const changed = view.controls.filter(({ name, default: usual }) => values[name] !== usual).map(({ name }) => [name, values[name]]);
  const query = new URLSearchParams(changed).toString();
  history.replaceState(null, "", `#${view.name}${query ? `?${query}` : ""}`);
}
