/** What a client shows the ledger API, and whom it believes: a bearer token that may change, and TLS's certificates. */

import { readFileSync, statSync } from "node:fs";
import { isIP, isIPv4 } from "node:net";

import type { Problem } from "./answers.js";
import { ConfigError, NotaryError, TokenUnavailable } from "./errors.js";
import { readSecret } from "./signing.js";

/** A token; a file that holds one, mode 0600; or what returns one each time it is asked. */
export type Token = string | { readonly file: string } | (() => string | Promise<string>);

/** How a client proves who it is, and whom it takes for the notary. Files are PEM. */
export interface Access {
  readonly token?: Token;
  /** Authorities that may vouch for the server; left out: the machine's own. */
  readonly caFile?: string;
  /** For an API that asks clients for a certificate; the key's mode is 0600. */
  readonly certificateFile?: string;
  readonly keyFile?: string;
}

export interface TlsOptions {
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
  readonly minVersion?: "TLSv1.2";
}

const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;
const TOKEN_MAX_CHARACTERS = 8_192;
const TOKEN_CODES = ["TOKEN_MISSING", "TOKEN_INVALID"];

/** Whether a problem is of the token alone. */
export function isOfToken(problem: Problem): boolean {
  return TOKEN_CODES.includes(problem.code);
}

/** Whether a host is this machine and no other. */
export function isLoopback(host: string): boolean {
  const address = host.replace(/^\[|\]$/g, "");
  if (host === "localhost") return true;
  return isIP(address) !== 0 && (isIPv4(address) ? address.startsWith("127.") : address === "::1");
}

/** What protects connections to several endpoints of one scheme. Throws ConfigError as `tlsFor` does. */
export function tlsForAll(endpoints: readonly string[], access: Access): TlsOptions {
  return endpoints.map((endpoint) => tlsFor(endpoint, access))[0] ?? {};
}

/** What protects connections to an endpoint. Throws ConfigError: no URL of the API, a bad file, a token in the clear. */
export function tlsFor(endpoint: string, access: Access): TlsOptions {
  let url: URL;
  try {
    url = new URL(endpoint);
  } catch {
    throw new ConfigError(`the endpoint '${endpoint}' is not like https://notary.example:8080`);
  }
  if (!["http:", "https:"].includes(url.protocol) || url.hostname === "") {
    throw new ConfigError(`the endpoint '${endpoint}' is not like https://notary.example:8080`);
  }
  const { caFile, certificateFile, keyFile } = access;
  if (url.protocol === "http:") {
    if (caFile ?? certificateFile ?? keyFile) {
      throw new ConfigError(`${endpoint} is plain HTTP: the certificates would protect nothing`);
    }
    if (access.token !== undefined && !isLoopback(url.hostname)) {
      throw new ConfigError(`a token for ${endpoint} would be sent in the clear: use https`, "PLAINTEXT_EXPOSED");
    }
    return {};
  }
  if ((certificateFile === undefined) !== (keyFile === undefined)) {
    throw new ConfigError("a client's certificate and its key go together");
  }
  return {
    minVersion: "TLSv1.2",
    ...(caFile === undefined ? {} : { ca: readPem(caFile) }),
    ...(certificateFile === undefined ? {} : { cert: readPem(certificateFile) }),
    ...(keyFile === undefined ? {} : { key: readSecret(keyFile) }),
  };
}

/** The token in force of one client. No error has it in its text. */
export class Bearer {
  readonly #source: Token | undefined;
  #token: string | undefined;
  #stamp = "";
  #asking: Promise<void> | undefined;

  constructor(source: Token | undefined) {
    this.#source = source;
    if (typeof source === "string") this.#token = checked(source, "the token");
  }

  /** The token to show now; undefined for a client without. Throws ConfigError or TokenUnavailable when there is none yet. */
  async token(): Promise<string | undefined> {
    const source = this.#source;
    if (typeof source === "object" && this.#token !== undefined && stampOf(source.file) !== this.#stamp) {
      await this.renew(this.#token);
    } else if (this.#token === undefined && source !== undefined) {
      await this.#askOnce();
    }
    return this.#token;
  }

  /** Whether there may be another token later. */
  get canRenew(): boolean {
    return this.#source !== undefined && typeof this.#source !== "string";
  }

  /** Ask for another token than the one that was refused; whether there is one now. Many may ask at once. */
  async renew(refused: string | undefined): Promise<boolean> {
    if (this.#token === refused && this.canRenew) {
      try {
        await this.#askOnce();
      } catch (error) {
        if (!(error instanceof NotaryError)) throw error; // of the source: the token in force stays
      }
    }
    return this.#token !== refused;
  }

  #askOnce(): Promise<void> {
    this.#asking ??= this.#ask().finally(() => (this.#asking = undefined));
    return this.#asking;
  }

  async #ask(): Promise<void> {
    const source = this.#source;
    if (typeof source === "object") {
      this.#stamp = stampOf(source.file);
      this.#token = checked(readSecret(source.file).trim(), source.file);
    } else if (typeof source === "function") {
      let given: string;
      try {
        given = await source();
      } catch {
        throw new TokenUnavailable("what gives the token threw an error"); // whose text may be secret
      }
      this.#token = checked(given, "what was given as a token");
    }
  }
}

/** The header that shows a token. */
export function bearerHeader(token: string | undefined): Record<string, string> {
  return token === undefined ? {} : { Authorization: `Bearer ${token}` };
}

function checked(token: unknown, origin: string): string {
  if (typeof token !== "string" || token.length > TOKEN_MAX_CHARACTERS || !TOKEN.test(token)) {
    throw new ConfigError(`${origin} is no token: one word, at most ${TOKEN_MAX_CHARACTERS} characters`);
  }
  return token;
}

function stampOf(path: string): string {
  try {
    const found = statSync(path);
    return `${found.mtimeMs} ${found.size} ${found.ino}`;
  } catch {
    return "";
  }
}

function readPem(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    throw new ConfigError(`${path} cannot be read`);
  }
}
