// Refreshes the elements with data-live: every second while a job is active, every 15 seconds otherwise.
// It requests the page again and replaces these elements, so that only the templates render them.
"use strict";

const BUSY = 1000, IDLE = 15000;

async function refresh() {
  if (document.hidden) return;
  const page = new URL(location.href);
  page.searchParams.delete("verify");  // verifies all receipts: only when requested
  const response = await fetch(page, { headers: { Accept: "text/html" }, redirect: "manual" });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    // do not replace an element that has the focus: the visitor may be about to press a button
    if (other && !part.contains(document.activeElement) && part.innerHTML !== other.innerHTML) part.replaceWith(other);
  }
}

async function keepFresh() {
  const begun = performance.now();
  try { await refresh(); } catch { /* the service is unavailable: try again later */ }
  // request a slow page less often
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
