import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

test("the README's example is the one that is run", () => {
  const read = (path: string): string => readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
  const shown = /<!-- example -->\n```ts\n([^]*?)```/.exec(read("README.md"))?.[1];
  assert.equal(shown, read("examples/notarise.ts"));
});
