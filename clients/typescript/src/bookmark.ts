/** Where a reader of completions or updates stopped, and by what it recognises that place in the same ledger. */

import { checkOffset, sha256 } from "./bytes.js";
import { BadRequest } from "./errors.js";

const FORM = /^([0-9]{1,16})-([0-9a-f]{32})$/;

/** What a bookmark recognises of a completion or an update. */
interface Published {
  readonly offset: number;
  readonly txId: string;
  readonly contentDigest: string;
  readonly logOffset: number;
  readonly recordedAt: string;
}

/**
 * An offset with a digest of what is published there: enough to go on after it, in the same ledger only.
 *
 * What is published at an offset never changes, whatever database or topic it is restored to. So a ledger that has
 * something else at the offset is another one. `toString` makes a text to keep, `parse` reads it.
 */
export class Bookmark {
  private constructor(
    readonly offset: number,
    readonly digest: string,
  ) {}

  /** The bookmark at an entry that was processed. */
  static of(entry: Published): Bookmark {
    // only what the log decided: which parties are shown depends on the reader's rights
    const parts = [entry.offset, entry.txId, entry.contentDigest, entry.logOffset, entry.recordedAt];
    return new Bookmark(entry.offset, sha256(Buffer.from(parts.join("\n"))).toString("hex").slice(0, 32));
  }

  /** Throws BadRequest. */
  static parse(text: string): Bookmark {
    const found = FORM.exec(text);
    const offset = Number(found?.[1]);
    if (found === null || offset < 1) throw new BadRequest(`a bookmark is an offset and a digest, not '${text.slice(0, 80)}'`, "QUERY_INVALID");
    checkOffset("a bookmark", offset);
    return new Bookmark(offset, found[2] as string);
  }

  /** Whether this entry is the one that the bookmark was made of. */
  marks(entry: Published): boolean {
    return this.toString() === Bookmark.of(entry).toString();
  }

  toString(): string {
    return `${this.offset}-${this.digest}`;
  }
}
