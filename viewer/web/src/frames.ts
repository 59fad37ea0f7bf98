// Measures how long frames take while something changes in each of them.

// The milliseconds between consecutive frames, over `frames` frames in each of which `change(i)` is called.
export function measureFrames(frames: number, change: (index: number) => void): Promise<number[]> {
  return new Promise((resolve) => {
    const times: number[] = [];
    let index = 0, last = 0;
    const next = (now: number) => {
      if (index) times.push(now - last);
      last = now;
      if (index === frames) {
        resolve(times);
        return;
      }
      change(index++);
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  });
}
