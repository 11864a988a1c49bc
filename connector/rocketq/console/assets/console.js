// What the pages do by themselves: pausing, the age of what is shown, keys, the live tail, and the plots.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const typing = (target) => target.matches("input, select, textarea");
  let paused = false;
  let tailPaused = false;

  // --- asking again, and saying how old the page is ---------------------------------------------

  document.addEventListener("htmx:before:request", (event) => {
    const from = event.target.id;
    const selecting = String(document.getSelection()) !== "";
    if (document.hidden || (from === "live" && (paused || selecting)) || (from === "tail-next" && tailPaused)) {
      event.preventDefault();
    }
  });
  document.addEventListener("htmx:error", () => { byId("stale").hidden = false; });
  document.addEventListener("htmx:after:swap", () => {
    byId("stale").hidden = true;
    takeTail();
    drawPlots();
  });

  setInterval(() => {
    const age = byId("age");
    if (age === null) return;
    const seconds = Math.max(0, Math.round((Date.now() - byId("live").dataset.at / 1000) / 1000));
    age.textContent = seconds < 2 ? "now" : `${seconds} s old`;
  }, 1000);

  const pause = () => {
    const button = byId("pause");
    if (button === null) return;
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
  };
  byId("pause")?.addEventListener("click", pause);

  // --- keys ------------------------------------------------------------------------------------

  let going = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") document.activeElement.blur();
    if (typing(event.target)) return;
    if (going) {
      going = false;
      const where = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (where !== null) location.assign(where.href);
    } else if (event.key === "g") {
      going = true;
      setTimeout(() => { going = false; }, 1500);
    } else if (event.key === "/") {
      event.preventDefault();
      document.querySelector(".find input").focus();
    } else if (event.key === "p") {
      byId("tail-pause") === null ? pause() : byId("tail-pause").click();
    }
  });

  // --- the live tail ---------------------------------------------------------------------------

  const TAIL_ROWS = 200;
  let taken = 0;
  let skipped = 0;

  const tellTail = () => {
    byId("tail-count").textContent = `${taken.toLocaleString("en")} message${taken === 1 ? "" : "s"}`;
    byId("tail-empty").hidden = taken > 0;
    byId("tail-skipped").hidden = skipped === 0;
    byId("tail-skipped").textContent = `${skipped.toLocaleString("en")} skipped`;
  };
  const takeTail = () => {
    const next = byId("tail-next");
    const rows = byId("tail");
    if (next === null || rows === null || next.dataset.taken) return;
    next.dataset.taken = "yes";
    taken += Number(next.dataset.rows) + Number(next.dataset.skipped);
    skipped += Number(next.dataset.skipped);
    rows.prepend(byId("tail-fresh").content);
    while (rows.children.length > TAIL_ROWS) rows.lastElementChild.remove();
    tellTail();
  };
  byId("tail-pause")?.addEventListener("click", (event) => {
    tailPaused = !tailPaused;
    event.target.setAttribute("aria-pressed", String(tailPaused));
    event.target.textContent = tailPaused ? "Go on" : "Pause";
  });
  byId("tail-clear")?.addEventListener("click", () => {
    byId("tail").replaceChildren();
    taken = skipped = 0;
    tellTail();
  });

  // --- choosing all dead letters -----------------------------------------------------------------

  byId("all")?.addEventListener("change", (event) => {
    for (const box of document.querySelectorAll('input[name="letter"]')) {
      box.checked = event.target.checked && !("resent" in box.dataset);
    }
  });

  // --- plots -------------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const LIGHT = ["#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626"];
  const DARK = ["#60a5fa", "#fbbf24", "#34d399", "#f472b6", "#a78bfa", "#22d3ee", "#a3e635", "#f87171"];
  const UNITS = ["", "K", "M", "G", "T"];
  const short = (value, step) => {
    let unit = 0;
    while (value >= step && unit < UNITS.length - 1) { value /= step; unit += 1; }
    const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 1 ? 1 : 2;
    const text = value.toFixed(digits);
    return text + (UNITS[unit] === "" ? "" : UNITS[unit] + (step === 1024 ? "i" : ""));
  };
  const drawn = new Map();
  let fetched = 0;

  const plotOf = (place, names) => {
    const ink = getComputedStyle(document.body).getPropertyValue("--soft");
    const line = getComputedStyle(document.body).getPropertyValue("--line");
    const step = place.dataset.unit === "bytes" ? 1024 : 1000;
    const suffix = place.dataset.unit === "bytes" ? "B/s" : "/s";
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px sans-serif" };
    const clock = (at) => new Date(at * 1000).toISOString();
    const x = {
      ...axis, space: 64, size: 26,
      values: (_, ticks) => ticks.map((at) => clock(at).slice(11, ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 19 : 16)),
    };
    const y = {
      ...axis, size: 58, space: 28,
      ...(step === 1024 ? { incrs: Array.from({ length: 50 }, (_, power) => 2 ** power) } : {}),
      values: (_, ticks) => ticks.map((each) => short(each, step)),
    };
    place.replaceChildren();
    return new uPlot({
      width: place.clientWidth,
      height: 160,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: { points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [x, y],
      series: [
        { label: "at", value: (_, at) => at === null ? "–" : clock(at).slice(11, 19) },
        ...names.map((name, index) => ({
          label: name, stroke: (dark.matches ? DARK : LIGHT)[index % LIGHT.length], width: 1.75, spanGaps: false,
          points: { show: false },
          value: (_, value) => value === null ? "–" : short(value, step) + suffix,
        })),
      ],
    }, [[]], place);
  };
  const drawPlots = async () => {
    const places = document.querySelectorAll("[data-plot]");
    if (places.length === 0 || Date.now() - fetched < 1500) return;
    fetched = Date.now();
    const answer = await fetch("/plots.json").catch(() => null);
    if (answer === null || !answer.ok) return;
    const told = await answer.json();
    const names = Object.keys(told.brokers);
    for (const place of places) {
      if (told.seconds.length < 2) {
        place.textContent = "";
        place.append(Object.assign(document.createElement("p"), { textContent: "Measuring; the first points come in a few seconds." }));
        continue;
      }
      const key = names.join(" ");
      const known = drawn.get(place);
      if (known === undefined || known.key !== key) {
        drawn.set(place, { key, plot: plotOf(place, names) });
      }
      drawn.get(place).plot.setData([told.seconds, ...names.map((name) => told.brokers[name][place.dataset.plot])]);
    }
  };
  addEventListener("resize", () => {
    for (const [place, { plot }] of drawn) plot.setSize({ width: place.clientWidth, height: 160 });
  });
  dark.addEventListener("change", () => { drawn.clear(); fetched = 0; drawPlots(); });

  // In a narrow window the menu is wider than its place: the current entry is scrolled to.
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  takeTail();
  drawPlots();
})();
