// The settings above the drawings: the problem and its solver.

import { createElement } from "../../plotting/viewer/view.js";

const REACHES = 40; // steps of the slider; the step after the largest reach is "off"

export class Setup {
  // form: parent element; settings: of the server; onChange: called with the name of a control.
  constructor(form, settings, onChange) {
    this.form = form;
    this.settings = settings;
    const { count, reach, growth } = form.elements;
    const counts = Object.keys(settings.polygons).map((n) => [n, `${n}: barycenter`]);
    setOptions(count, [["2", "2: path"], ...counts]);
    setOptions(growth, Object.entries(settings.growths));
    Object.assign(reach, { min: 0, max: REACHES + 1, step: 1, value: REACHES + 1 });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      this.showRelevant();
      onChange(event.target.name);
    });
    this.reset(2);
  }

  // ---- current values; null for those that do not apply

  get dimension() {
    return Number(this.form.elements.dimension.value);
  }

  get shape() {
    return Array(this.dimension).fill(Number(this.form.elements.cells.value));
  }

  get count() {
    return Number(this.form.elements.count.value);
  }

  get isPath() {
    return this.count === 2;
  }

  // The entry of the menu, also while a barycenter hides it.
  get choice() {
    const { value } = this.form.elements.solver;
    return this.settings.solvers[this.dimension].find(({ name }) => name === value);
  }

  // The slider is logarithmic.
  get epsilon() {
    if (!this.isPath || !this.choice.epsilon) return null;
    return Number(Math.exp(Number(this.form.elements.epsilon.value)).toPrecision(2));
  }

  // The slider is logarithmic, and off at its right end: an infinite reach is balanced transport.
  get reach() {
    const step = Number(this.form.elements.reach.value);
    if (step > REACHES || (this.isPath && !this.choice.reach)) return null;
    const [least, , most] = this.settings.reach;
    return Number((least * (most / least) ** (step / REACHES)).toPrecision(2));
  }

  get growth() {
    return this.isPath && this.reach !== null ? this.form.elements.growth.value : null;
  }

  // Everything but the drawings and the weights of a request.
  get request() {
    const { shape, epsilon, reach, growth } = this;
    return { shape, solver: this.isPath ? this.choice.name : null, epsilon, reach, growth };
  }

  // ---- changes

  // Show the choices of a dimension and their defaults.
  reset(dimension, cells = this.settings.default_cells[dimension]) {
    const { elements } = this.form;
    elements.dimension.value = String(dimension);
    const format = (n) => (dimension === 2 ? `${n} × ${n}` : String(n));
    const choices = new Set([...this.settings.cells[dimension], cells]); // links have any number
    setOptions(elements.cells, Array.from(choices, (n) => [n, format(n)]));
    elements.cells.value = String(cells);
    const solvers = this.settings.solvers[dimension];
    setOptions(elements.solver, solvers.map(({ name, label }) => [name, `${name}: ${label}`]));
    const [least, initial, most] = solvers.find(({ epsilon }) => epsilon).epsilon.map(Math.log);
    Object.assign(elements.epsilon, { min: least, max: most, step: "any", value: initial });
    this.showRelevant();
  }

  // linked: see permalink.js.
  restore({ shape, drawings, solver, epsilon, reach, growth }) {
    this.reset(shape.length, shape[0]);
    const { elements } = this.form;
    elements.count.value = String(drawings.length);
    elements.solver.value = solver ?? "auto";
    if (!elements.solver.value) elements.solver.value = "auto";
    if (epsilon !== null) elements.epsilon.value = Math.log(epsilon);
    if (reach !== null) {
      const [least, , most] = this.settings.reach;
      elements.reach.value = Math.round((REACHES * Math.log(reach / least)) / Math.log(most / least));
    }
    if (growth in this.settings.growths) elements.growth.value = growth;
    this.showRelevant();
  }

  // Show the controls that apply, and the values of the sliders.
  showRelevant() {
    const { elements } = this.form;
    showLabel(elements.solver, this.isPath);
    showLabel(elements.epsilon, this.epsilon !== null);
    showLabel(elements.reach, !this.isPath || this.choice.reach);
    showLabel(elements.growth, this.growth !== null);
    const texts = { epsilon: String(this.epsilon), reach: this.reach?.toString() ?? "off" };
    for (const [name, text] of Object.entries(texts)) {
      elements[name].parentElement.querySelector("output").textContent = text;
      elements[name].setAttribute("aria-valuetext", text);
    }
  }
}

function showLabel(control, isShown) {
  control.parentElement.hidden = !isShown;
}

function setOptions(select, entries) {
  select.replaceChildren(
    ...entries.map(([value, textContent]) => createElement("option", { value, textContent })),
  );
}
