// A sign that appears when an answer takes longer than a tenth of a second.

const DELAY = 100; // milliseconds

export class BusySign {
  constructor(root) {
    this.root = root;
    this.running = 0;
  }

  // Wait for a promise, and show the text meanwhile. Between two answers in quick succession the
  // sign remains.
  async during(text, work) {
    this.running += 1;
    clearTimeout(this.hideTimer);
    const timer = setTimeout(() => {
      this.root.textContent = text;
      this.root.hidden = false;
    }, DELAY);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
      this.running -= 1;
      this.hideTimer = setTimeout(() => {
        this.root.hidden = this.running === 0;
      }, DELAY);
    }
  }
}
