// Playing hop by hop: where the batch is, and when it moves on.

const HOP_MS = 1400;
const still = matchMedia('(prefers-reduced-motion: reduce)');

export class Player {
  // `show(done, part)`: so many hops are over, and this part of the next one.
  constructor(show, changed) {
    this.show = show;
    this.changed = changed;
    this.load(0, 0);
  }

  load(hops, done) {
    this.pause();
    this.hops = hops;
    // An address may say anything.
    const whole = Number.isInteger(done) ? done : 0;
    this.go(Math.min(Math.max(whole, 0), hops));
  }

  go(done) {
    this.done = done;
    this.show(done, 0);
    this.changed();
  }

  get playing() {
    return this.frame !== undefined;
  }

  play() {
    if (this.hops === 0) return;
    if (this.done >= this.hops) this.go(0);
    let started;
    const tick = (now) => {
      started ??= now;
      const part = (now - started) / HOP_MS;
      if (part < 1) {
        if (!still.matches) this.show(this.done, part);
      } else {
        started = now;
        if (this.done + 1 >= this.hops) this.frame = undefined;
        this.go(this.done + 1);
        if (!this.playing) return;
      }
      this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
    this.changed();
  }

  pause() {
    if (this.playing) cancelAnimationFrame(this.frame);
    this.frame = undefined;
  }

  toggle() {
    if (!this.playing) return this.play();
    this.pause();
    return this.go(this.done);
  }

  step(by) {
    this.pause();
    this.go(Math.min(Math.max(this.done + by, 0), this.hops));
  }
}
