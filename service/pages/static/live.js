// Keeps what is marked data-live as the server has it now: often while a job is at work, now and then else.
// The page is asked for again and the marked parts are exchanged, so that there is one way to draw them.
"use strict";

const BUSY = 1000, IDLE = 15000;

async function refresh() {
  if (document.hidden) return;
  const page = new URL(location.href);
  page.searchParams.delete("verify");  // walks the whole chain of receipts: once, when somebody asks for it
  const answer = await fetch(page, { headers: { Accept: "text/html" }, redirect: "manual" });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    // whoever is about to press a button there should not have it taken away
    if (other && !part.contains(document.activeElement) && part.innerHTML !== other.innerHTML) part.replaceWith(other);
  }
}

async function keepFresh() {
  const begun = performance.now();
  try { await refresh(); } catch { /* the service is away: later */ }
  // a page that takes long to make is asked for less often
  const pause = document.querySelector("[data-active]") ? BUSY : IDLE;
  setTimeout(keepFresh, Math.max(pause, 10 * (performance.now() - begun)));
}

function offerCopies() {
  for (const command of document.querySelectorAll("pre.command")) {
    command.title = "Click to copy";
    command.addEventListener("click", async () => {
      await navigator.clipboard?.writeText(command.textContent.trim());
      command.title = "Copied";
      command.classList.add("copied");
    });
  }
}

offerCopies();
if (document.querySelector("[data-live]")) {
  setTimeout(keepFresh, document.querySelector("[data-active]") ? BUSY : IDLE);
}
