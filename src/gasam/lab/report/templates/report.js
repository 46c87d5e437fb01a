"use strict";
const text = "var(--text)", muted = "var(--muted)", line = "var(--line)";
const config = {
  font: "system-ui, sans-serif",
  background: "transparent",
  view: { stroke: null },
  axis: {
    labelColor: muted, titleColor: muted, gridColor: line, domainColor: line, tickColor: line,
    labelFontSize: 12, titleFontSize: 12, titleFontWeight: 400, titlePadding: 8, labelLimit: 160,
  },
  axisX: { grid: false, tickCount: 5, labelOverlap: true },
  axisY: { tickCount: 5, labelOverlap: true },
  text: { color: text, fontSize: 12.5 },
  rule: { color: muted },
  legend: { disable: true },
};
// Only errors are logged: a chart whose configurations are all hidden has no extent, which is no mistake.
const options = { mode: "vega-lite", renderer: "svg", actions: false, logLevel: 1, config };

// Charts are drawn one after another, so that the page answers meanwhile; those in a closed part when it opens.
const views = new Map();
// The charts are those of the pictures. Here they fill the page, follow the theme, and their configurations can be hidden.
function live(text) {
  const spec = JSON.parse(text.replace(/"(#[0-9A-F]{6})"/g, (_, colour) => `"var(--series-${colour.slice(1)}, ${colour})"`));
  const points = spec.layer.filter((layer) => layer.mark.type === "point" && layer.encoding.tooltip);
  // A point itself is hard to hit, so a larger one without a colour lies above it.
  spec.layer.push(...points.map((layer) => ({ ...layer, mark: { ...layer.mark, fill: undefined, opacity: 0, size: 250 } })));
  for (const layer of points) if (layer.mark.fill === "white") layer.mark.fill = "var(--card)";
  const labels = [...new Set(spec.data.values.map((row) => row.label).filter((label) => label !== undefined))];
  if (labels.length) {
    spec.params = [{ name: "shown", value: labels }];
    spec.transform = [{ filter: "indexof(shown, datum.label) >= 0" }];
  }
  return { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
}
async function draw(place) {
  if (views.has(place)) return;
  views.set(place, null);
  const drawn = await vegaEmbed(place, live(place.querySelector("script").textContent), options);
  views.set(place, drawn.view);
  await show(place.closest(".linked"), [place]);
}
async function show(part, places) {
  const labels = [...part.querySelectorAll(".chip[aria-pressed=true]")].map((chip) => chip.dataset.label);
  for (const place of places) {
    const view = views.get(place);
    if (view && "shown" in view.getState().signals) await view.signal("shown", labels).resize().runAsync();
  }
}
async function drawAll() {
  for (const place of document.querySelectorAll(".chart")) {
    if (place.closest("details:not([open])")) continue;
    await draw(place);
    await new Promise((done) => setTimeout(done));
  }
  document.documentElement.dataset.drawn = "true";
}
for (const part of document.querySelectorAll("details.analysis")) {
  part.addEventListener("toggle", () => part.open && part.querySelectorAll(".chart").forEach(draw));
}
for (const part of document.querySelectorAll(".linked")) {
  for (const chip of part.querySelectorAll(".chip")) chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") !== "true");
    show(part, part.querySelectorAll(".chart"));
  });
}

// The table of all runs: a click on a heading sorts, the fields above it filter.
const body = document.querySelector("#all-runs tbody"), rows = [...body.rows];
const headings = [...document.querySelectorAll("#all-runs th")], filters = document.querySelector(".filters");
function key(cell) {
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (!cell.classList.contains("number")) return text;
  return text === "" || isNaN(text) ? "" : Number(text);
}
function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}
headings.forEach((heading, column) => heading.addEventListener("click", () => {
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const each of headings) each.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const keyed = rows.map((row) => [key(row.cells[column]), row]);
  // Cells without a value stay at the end, whatever the direction.
  keyed.sort(([one], [other]) => (one === "") - (other === "") || (down ? -1 : 1) * compare(one, other));
  body.append(...keyed.map(([, row]) => row));
}));
function filter() {
  const words = filters.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += !row.hidden;
  }
  filters.querySelector("output").textContent = `${count} of ${rows.length} runs`;
}
filters.addEventListener("input", filter);
filter();
drawAll();
