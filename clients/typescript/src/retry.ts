/** When to send the same request again: a pure function of what has happened so far. */

import { ConfigError } from "./errors.js";

export interface RetrySettings {
  readonly timeoutS?: number;
  readonly backoffBase?: number;
  readonly maxRestartCount?: number;
  readonly jitter?: number;
  readonly deadlineS?: number;
  readonly attemptMaxS?: number;
  readonly estimateMaxS?: number;
}

/**
 * How long to keep on. The same ids go out each time, so sending again is always safe.
 *
 * The pause after failed attempt n, from 0, is `timeoutS * backoffBase ** min(n, maxRestartCount)`, up to `jitter` times
 * itself longer; the server's own estimate takes its place when that is longer.
 */
export class RetryPolicy {
  readonly timeoutS: number;
  readonly backoffBase: number;
  readonly maxRestartCount: number;
  readonly jitter: number;
  /** From the first attempt; then the caller gets the last NotNow. */
  readonly deadlineS: number;
  /** Longest wait for one answer. */
  readonly attemptMaxS: number;
  /** Longest estimate of the server's that is waited for. */
  readonly estimateMaxS: number;

  constructor(settings: RetrySettings = {}) {
    this.timeoutS = settings.timeoutS ?? 0.05;
    this.backoffBase = settings.backoffBase ?? 1.8;
    this.maxRestartCount = settings.maxRestartCount ?? 3;
    this.jitter = settings.jitter ?? 0.5;
    this.deadlineS = settings.deadlineS ?? 30;
    this.attemptMaxS = settings.attemptMaxS ?? 10;
    this.estimateMaxS = settings.estimateMaxS ?? 86_400;
    const positive = [this.timeoutS, this.attemptMaxS, this.estimateMaxS].every((value) => value > 0);
    if (!positive || !(this.backoffBase >= 1 && this.maxRestartCount >= 0 && this.jitter >= 0)) {
      throw new ConfigError("a retry policy has positive times, no negative figure, and backoffBase is at least 1");
    }
  }

  /** The pause after failed attempt number `attempt`, from 0. `random` is uniform in [0, 1); `estimateS` 0: none told. */
  delayS(attempt: number, estimateS: number, random: number): number {
    const ownS = this.timeoutS * this.backoffBase ** Math.min(attempt, this.maxRestartCount);
    return Math.max(ownS * (1 + this.jitter * random), this.believedS(estimateS));
  }

  /** So much of a server's estimate is waited for: an absurd figure must not hold up anybody. */
  believedS(estimateS: number): number {
    return estimateS > 0 ? Math.min(estimateS, this.estimateMaxS) : 0;
  }
}

/** Seconds of a clock that never goes back. */
export function clockS(): number {
  return performance.now() / 1000;
}

/** Longest delay of a timer of the platform. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export function timerMs(delayS: number): number {
  return Math.min(delayS * 1000, TIMER_MAX_MS);
}

export function sleepS(delayS: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, timerMs(delayS)));
}
