// Time: where it stands, and how it runs.

const SECONDS = 3; // from one end to the other
const STEP = 1 / 32;

export class Player {
  // changed: called with t whenever it moved, or started or stopped to run.
  constructor(changed) {
    this.changed = changed;
    this.t = 0;
    this.way = 1;
    this.loop = true;
    this.playing = false;
  }

  seek(t) {
    this.t = Math.min(1, Math.max(0, t));
    this.changed(this);
  }

  step(way) {
    this.pause();
    this.seek(Math.round(this.t / STEP + way) * STEP);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.t >= 1) [this.t, this.way] = [this.loop ? 1 : 0, this.loop ? -1 : 1];
    this.playing = true;
    this.changed(this);
    let before = null;
    const tick = (now) => {
      if (!this.playing) return;
      if (before !== null) this.advance((now - before) / 1000 / SECONDS);
      before = now;
      if (this.playing) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    this.changed(this);
  }

  // There and back again while it loops, else once to the end.
  advance(by) {
    const t = this.t + this.way * by;
    if (this.loop && (t > 1 || t < 0)) this.way = t > 1 ? -1 : 1;
    if (!this.loop && t >= 1) {
      this.playing = false;
      this.way = 1;
    }
    this.seek(t);
  }
}
