/** Codes of the error catalogue that an application can meet; a test compares them with docs/errors.md. */

/** `no`: the same request is answered the same. `same`: send the very same request again, with the same ids. */
export type Retry = "no" | "same";

export const RETRY_BY_CODE = {
  MALFORMED_JSON: "no",
  MALFORMED_REQUEST: "no",
  TOO_MANY_STATES: "no",
  WRONG_LEDGER: "no",
  EMPTY_BATCH: "no",
  BATCH_TOO_LARGE: "no",
  BODY_TOO_LARGE: "no",
  BODY_TOO_SLOW: "same",
  MEDIA_TYPE_UNSUPPORTED: "no",
  UPGRADE_REQUIRED: "no",
  WRONG_HOST: "no",
  WINDOW_EXCEEDED: "no",
  HTTP_MALFORMED: "no",
  SIGNATURE_INVALID: "no",
  PARTY_UNKNOWN: "no",
  KEY_NOT_VALID: "no",
  TOKEN_MISSING: "no",
  TOKEN_INVALID: "no",
  PERMISSION_DENIED: "no",
  RATE_EXCEEDED: "same",
  STATE_CONFLICT: "no",
  TX_ID_REUSED: "no",
  TIME_WINDOW_CLOSED: "no",
  COMMAND_ID_REUSED: "no",
  DEDUPLICATION_PERIOD_TOO_LONG: "no",
  SUBMISSION_IN_FLIGHT: "same",
  TX_NOT_FOUND: "no",
  QUERY_INVALID: "no",
  OFFSET_PRUNED: "no",
  OFFSET_AFTER_END: "same",
  READER_TOO_SLOW: "same",
  TOO_MANY_STREAMS: "same",
  FEED_UNAVAILABLE: "same",
  EARLY_NOT_OFFERED: "no",
  NO_LOG_NODES: "no",
  LOG_NODES_SILENT: "same",
  ROUTE_NOT_FOUND: "no",
  METHOD_NOT_ALLOWED: "no",
  NOT_ACTIVE: "same",
  SERVICE_PAUSED: "same",
  OVERLOADED: "same",
  USER_OVERLOADED: "same",
  OUTCOME_UNKNOWN: "same",
  INTERNAL: "same",
  ANSWER_UNREADABLE: "same",
  RECEIPT_INVALID: "no",
  LEDGER_CHANGED: "no",
  CONFIG_INVALID: "no",
  KEY_UNSAFE: "no",
  PLAINTEXT_EXPOSED: "no",
} as const satisfies Record<string, Retry>;

export type Code = keyof typeof RETRY_BY_CODE;

/** Whether this release knows a code: a newer notary may have others. */
export function isKnown(code: string): code is Code {
  return Object.hasOwn(RETRY_BY_CODE, code);
}
