// The time of the view, and its playback.

const SECONDS = 3; // from t = 0 to t = 1
const STEP = 1 / 32;

export class Player {
  // onChange: called whenever the time changes, or playback starts or stops.
  constructor(onChange) {
    this.onChange = onChange;
    this.t = 0;
    this.direction = 1;
    this.loop = true;
    this.playing = false;
  }

  seek(t) {
    this.t = Math.min(1, Math.max(0, t));
    this.onChange(this);
  }

  step(direction) {
    this.pause();
    this.seek(Math.round(this.t / STEP + direction) * STEP);
  }

  // Space plays, arrow keys step.
  press(event) {
    const action = { " ": () => this.toggle(), ArrowLeft: () => this.step(-1) };
    action.ArrowRight = () => this.step(1);
    if (!action[event.key]) return;
    event.preventDefault();
    action[event.key]();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.t >= 1) [this.t, this.direction] = [this.loop ? 1 : 0, this.loop ? -1 : 1];
    this.playing = true;
    this.onChange(this);
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
    this.onChange(this);
  }

  // A loop runs forwards and backwards; otherwise playback stops at t = 1.
  advance(by) {
    const t = this.t + this.direction * by;
    if (this.loop && (t > 1 || t < 0)) this.direction = t > 1 ? -1 : 1;
    if (!this.loop && t >= 1) {
      this.playing = false;
      this.direction = 1;
    }
    this.seek(t);
  }
}
