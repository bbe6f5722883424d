// The page: what is drawn is solved, what is solved is shown.

import { bytesOf } from "./bytes.js";
import { showFacts } from "./facts.js";
import { Frames } from "./frames.js";
import { element, listenToKeys, View } from "./view.js";
import { Drawing } from "./drawing.js";
import { showGallery } from "./gallery.js";
import { setupOf } from "./link.js";
import { Pad } from "./pad.js";
import * as server from "./server.js";
import { showTake } from "./take.js";

const FRAMES = 33;
const SUPERSEDED = 409;
const QUIET = 250; // milliseconds without a stroke before the report is asked for
const TITLES = { source: "From", target: "To" };
const FIRST = { 1: ["two-lumps", "triangle"], 2: ["moons", "heart"] };

const settings = JSON.parse(document.getElementById("settings").textContent);
const colours = bytesOf(settings.colours);
const at = (id) => document.getElementById(id);
let complaining = false;

class Page {
  constructor() {
    this.view = new View(at("view"), colours, () => this.fetchOverlays());
    this.drawings = {};
    this.pads = {};
    for (const end of Object.keys(TITLES)) this.makePad(end);
    this.question = null; // what is on the screen
    this.wanted = false; // whether something newer is drawn
    this.busy = false;
    showTake(at("take"), () => this.now(), say);
    listenToKeys(this.view.player);
    at("setup").addEventListener("change", (event) => this.changed(event.target));
    at("epsilon").addEventListener("input", () => this.showEpsilon());
  }

  async start() {
    const linked = await setupOf(location.hash).catch(() => null);
    if (location.hash && !linked) say("The link cannot be read; it may be cut off.");
    const dimension = linked?.shape.length ?? 2;
    at("setup").elements.dimension.value = String(dimension);
    this.fill(dimension, linked?.shape[0]);
    if (linked) this.restore(linked);
    await this.showGalleries();
    if (!linked) this.startWith(FIRST[dimension]);
    window.addEventListener("hashchange", () => location.reload());
  }

  makePad(end) {
    const drawing = new Drawing(this.shape(), () => this.drawn(end));
    this.drawings[end] = drawing;
    const dropped = (file) => this.dropped(end, file);
    this.pads[end] = new Pad(at(end), TITLES[end], drawing, colours, dropped);
  }

  // ---- what is asked

  get dimension() {
    return Number(at("setup").elements.dimension.value);
  }

  shape() {
    const cells = Number(at("cells").value) || settings.usual[this.dimension];
    return Array(this.dimension).fill(cells);
  }

  setup() {
    const { name, epsilon } = this.solver();
    return {
      shape: this.shape(),
      source: this.drawings.source.values,
      target: this.drawings.target.values,
      solver: name,
      epsilon: epsilon ? this.epsilon() : null,
      frames: FRAMES,
    };
  }

  now() {
    const setup = this.setup();
    return { setup, t: this.view.player.t, question: () => server.asked(setup) };
  }

  solver() {
    return settings.solvers[this.dimension].find(({ name }) => name === at("solver").value);
  }

  // The slider is even in the logarithm.
  epsilon() {
    return Number(Math.exp(Number(at("epsilon").value)).toPrecision(2));
  }

  // ---- the choices above the page

  fill(dimension, cells = settings.usual[dimension]) {
    const shown = (n) => (dimension === 2 ? `${n} × ${n}` : String(n));
    options(at("cells"), settings.cells[dimension].map((n) => [n, shown(n)]));
    at("cells").value = String(cells);
    options(at("solver"), settings.solvers[dimension].map(({ name, label }) => [name, label]));
    const { least, most, usual } = settings.epsilon;
    const range = { min: Math.log(least), max: Math.log(most), step: "any" };
    Object.assign(at("epsilon"), range, { value: Math.log(usual) });
    for (const drawing of Object.values(this.drawings)) {
      drawing.shape = this.shape();
      drawing.values = new Uint16Array(cells ** dimension);
      drawing.past = [];
    }
    this.showEpsilon();
  }

  showEpsilon() {
    at("epsilon-label").hidden = !this.solver().epsilon;
    at("epsilon-value").textContent = String(this.epsilon());
  }

  async changed(control) {
    if (control.name === "dimension") {
      this.fill(this.dimension);
      await this.showGalleries();
      this.startWith(FIRST[this.dimension]);
    } else if (control.id === "cells") {
      for (const drawing of Object.values(this.drawings)) drawing.resize(this.shape());
      this.redrawPads();
      await this.showGalleries();
    }
    this.showEpsilon();
    this.solveSoon();
  }

  restore(linked) {
    at("solver").value = linked.solver;
    if (!at("solver").value) at("solver").value = "auto";
    if (linked.epsilon !== null) at("epsilon").value = Math.log(linked.epsilon);
    this.showEpsilon();
    for (const end of Object.keys(TITLES)) this.drawings[end].replace(linked[end]);
    this.view.player.seek(linked.t);
  }

  async showGalleries() {
    const shape = this.shape();
    this.offers = await server.gallery(shape.length, shape[0]).catch((error) => {
      say(error.message);
      return [];
    });
    for (const end of Object.keys(TITLES)) {
      const chosen = ({ values }) => this.drawings[end].replace(values);
      showGallery(at(end), this.offers, shape, colours, chosen);
    }
  }

  startWith(names) {
    Object.keys(TITLES).forEach((end, k) => {
      const found = this.offers.find(({ name }) => name === names[k]) ?? this.offers[k];
      if (found) this.drawings[end].replace(found.values);
    });
  }

  async dropped(end, file) {
    say(`Reading ${file.name} …`);
    try {
      const shape = this.shape();
      const { values, changed } = await server.readFile(file, shape.length, shape[0]);
      this.drawings[end].replace(values);
      say([`Read ${file.name}.`, ...changed].join(" "));
    } catch (error) {
      say(error.message);
    }
  }

  // ---- from a stroke to the screen

  drawn(end) {
    say("");
    this.pads[end].draw();
    this.solveSoon();
  }

  redrawPads() {
    for (const pad of Object.values(this.pads)) pad.draw();
  }

  // One question at a time; what is drawn meanwhile waits, and only the latest of it is asked.
  solveSoon() {
    this.wanted = true;
    if (!this.busy) this.solveLatest();
  }

  async solveLatest() {
    this.busy = true;
    document.querySelector(".middle").classList.add("waiting");
    while (this.wanted) {
      this.wanted = false;
      await this.solveNow();
    }
    this.busy = false;
    document.querySelector(".middle").classList.remove("waiting");
    this.reportLater();
  }

  async solveNow() {
    const empty = Object.keys(TITLES).find((end) => this.drawings[end].isEmpty);
    if (empty) {
      complain(`Draw something on the ${empty === "source" ? "left" : "right"} first.`);
      return;
    }
    const question = server.asked(this.setup());
    try {
      const answer = await server.solve(question);
      this.question = question;
      this.show(answer);
      if (complaining) say("");
      document.dispatchEvent(new Event("geonet:shown")); // for tests and `make app-latency`
    } catch (error) {
      if (error.status !== SUPERSEDED) complain(error.message);
    }
  }

  show(answer) {
    const scale = { name: "linear", lowest: 0, highest: answer.top };
    const count = answer.times.length;
    const frames = new Frames({ shape: answer.shape, count, levels: answer.levels, scale });
    this.view.show(frames);
    const distance = answer.distance_text ? `W₂ = ${answer.distance_text}, ` : "";
    const time = `${answer.milliseconds.toFixed(answer.milliseconds < 10 ? 1 : 0)} ms`;
    at("quick").textContent = `${distance}solved by ${answer.solver} in ${time}`;
  }

  reportLater() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetchReport(), QUIET);
  }

  async fetchReport() {
    const question = this.question;
    if (!question || this.busy) return;
    try {
      const facts = await server.report(question);
      if (question === this.question) showFacts(at("facts"), facts);
    } catch (error) {
      if (error.status !== SUPERSEDED) say(error.message);
    }
  }

  async fetchOverlays() {
    const question = this.question;
    if (!question || this.asking === question) return;
    this.asking = question;
    try {
      const { particles, potential, why } = await server.overlays(question);
      if (question !== this.question) return;
      this.view.show(this.view.frames, { particles, potential }, why);
      const sentences = new Set(Object.values(why));
      if (sentences.size) say([...sentences].join(" "));
    } catch (error) {
      if (error.status !== SUPERSEDED) say(error.message);
    }
  }
}

function options(select, entries) {
  select.replaceChildren(
    ...entries.map(([value, textContent]) => element("option", { value, textContent })),
  );
}

function say(sentence) {
  complaining = false;
  at("message").textContent = sentence;
}

// What the next path that can be solved takes back.
function complain(sentence) {
  say(sentence);
  complaining = true;
}

new Page().start();
