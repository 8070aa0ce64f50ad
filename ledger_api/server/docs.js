"use strict";
// The page's forms: each makes its call with what is filled in, and shows the answer. Without scripts the page has none.

const READ_MAX_BYTES = 65536, READ_MAX_MS = 5000; // of a stream, which has no end

async function answerOf(form) {
  const query = new URLSearchParams();
  let path = form.dataset.path;
  for (const input of form.querySelectorAll("input[name]")) {
    if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value.trim()));
    else if (input.value.trim()) query.append(input.name, input.value.trim());
  }
  const body = form.querySelector("textarea"), token = document.getElementById("token").value.trim();
  const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const ended = AbortSignal.timeout(READ_MAX_MS);
  const response = await fetch(path + (query.size ? `?${query}` : ""), {
    method: form.dataset.method.toUpperCase(), headers, body: body ? body.value : undefined, signal: ended,
  });
  return `${response.status} ${response.statusText}\n\n${readable(await begin(response))}`;
}

async function begin(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let text = "";
  try {
    for (let part; text.length < READ_MAX_BYTES && !(part = await reader.read()).done;) text += decoder.decode(part.value, { stream: true });
  } catch (error) {
    if (error.name !== "TimeoutError") throw error;
  }
  reader.cancel().catch(() => {});
  return text;
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

for (const form of document.querySelectorAll("form[data-path]")) {
  form.hidden = false;
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const shown = form.querySelector("pre");
    shown.hidden = false;
    shown.textContent = "…";
    try {
      shown.textContent = await answerOf(form);
    } catch (error) {
      shown.textContent = `no answer: ${error.message}`;
    }
  });
}
document.getElementById("with-token").hidden = false;
