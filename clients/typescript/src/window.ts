/** When a request may be notarised. */

/** `[fromUs, untilUs)` in microseconds since 1970 UTC; at least one end is there. */
export interface TimeWindow {
  readonly fromUs?: bigint | undefined;
  readonly untilUs?: bigint | undefined;
}

/** Microseconds of a date, for a window's end. */
export function microseconds(date: Date): bigint {
  return BigInt(date.getTime()) * 1000n;
}
