// Live parts: what carries data-live is fetched again every few seconds while the page is seen, and swapped in.
// Without this script the pages work the same; they are as old as their last load.
"use strict";

const SECONDS = 5;

async function refresh() {
  const parts = document.querySelectorAll("[data-live]");
  if (!parts.length || document.hidden || parts[0].contains(document.activeElement)) return;
  let answer;
  try {
    answer = await fetch(location.href, { redirect: "error" });
  } catch {
    return;
  }
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next && next.innerHTML !== part.innerHTML) part.replaceChildren(...next.childNodes);
  }
}

setInterval(refresh, SECONDS * 1000);

for (const block of document.querySelectorAll("[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy quiet";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.before(button);
}
