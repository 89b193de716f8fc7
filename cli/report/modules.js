// The modules of a step and what a plan does to them.

const tree = report.tree;
const planRuns = runs.filter(run => run.units);
let planShown = planRuns.length - 1;
let measure = "activations";

// By place in the tree, the name of the unit that the module is or lies in, or "". A
// segment such as h.0-2 is a unit of several modules.
function unitsOfModules(run) {
  const names = new Map((run ? run.units : []).map(planned => [planned.name, planned.name]));
  for (const planned of run ? run.units : []) {
    const range = /^(.*?)(\d+)-(\d+)$/.exec(planned.name);
    if (!range || tree.some(module => module.name === planned.name)) continue;
    for (let k = Number(range[2]); k <= Number(range[3]); ++k) names.set(range[1] + k, planned.name);
  }
  const units = [];
  tree.forEach(module => units.push(names.get(module.name) || (module.parent < 0 ? "" : units[module.parent])));
  return units;
}

// Leaves of the map: what modules have of their own. Those too small to see are one.
function mapRows() {
  const units = unitsOfModules(planRuns[planShown]);
  const value = module => module["own_" + measure];
  const total = tree.reduce((sum, module) => sum + value(module), 0);
  const rows = [{id: "all", parent: "", name: report.model.name, size: 0}];
  const isNeeded = new Array(tree.length).fill(false);
  let small = 0;
  const leaves = [];
  tree.forEach((module, place) => {
    if (value(module) * 2500 < total) {
      small += value(module);
      return;
    }
    for (let at = place; at >= 0 && !isNeeded[at]; at = tree[at].parent) isNeeded[at] = true;
    leaves.push({id: "own" + place, parent: String(place), name: module.name, size: value(module), unit: units[place]});
  });
  tree.forEach((module, place) => {
    if (isNeeded[place]) rows.push({id: String(place), parent: module.parent < 0 ? "all" : String(module.parent), name: module.name, size: 0});
  });
  if (small > 0) leaves.push({id: "small", parent: "all", name: "modules too small to show", size: small, unit: ""});
  return [...rows, ...leaves];
}

// The label of a leaf: of its names, from the longest to the shortest, the first that fits,
// and the size below it. A letter is at most 6.8 pixels wide.
const letters = "(datum.x1 - datum.x0 - 8) / 6.8";
const nameSignal = [0, 1, 2, 3].map(k => `datum.names[${k}].length <= ${letters} ? datum.names[${k}] : `).join("") + "''";
const labelSignal = `datum.y1 - datum.y0 < 18 ? '' : datum.y1 - datum.y0 > 34 && datum.sizeText.length <= ${letters} ` +
    `? [${nameSignal}, datum.sizeText] : (${nameSignal})`;

function mapSpec(width) {
  const rows = mapRows();
  return {
    height: Math.max(260, Math.min(460, Math.round(width * 0.45))),
    data: [
      {name: "tree", values: rows, transform: [
        {type: "stratify", key: "id", parentKey: "parent"},
        {type: "treemap", field: "size", sort: {field: "value", order: "descending"}, round: true,
         method: "squarify", paddingInner: 1, size: [{signal: "width"}, {signal: "height"}]}]},
      {name: "leaves", source: "tree", transform: [{type: "filter", expr: "datum.size > 0"}]},
    ],
    marks: [
      {type: "rect", from: {data: "leaves"}, name: "leaves_drawn", aria: false, encode: {
        update: {
          x: {field: "x0"}, y: {field: "y0"}, x2: {field: "x1"}, y2: {field: "y1"},
          fill: [{test: "datum.unit", value: "var(--unit)"}, {value: "var(--kept)"}],
          stroke: {value: "var(--background)"}, strokeWidth: {value: 1}}}},
      {type: "text", from: {data: "leaves"}, aria: false, interactive: false, encode: {update: {
        x: {signal: "datum.x0 + 4"}, y: {signal: "datum.y0 + 14"}, fontSize: {value: 11},
        text: {signal: labelSignal}, fill: {value: "var(--text)"}}}},
    ],
  };
}

function mapSection() {
  const sizes = {activations: "activations of the forward pass", parameters: "parameters"};
  const reading = element("div", {class: "reading"}, "Point at a module. The table below has all of them.");
  const chart = chartOf("Modules by size", width => {
    const spec = mapSpec(width);
    spec.data[0].values.forEach(row => {
      row.names = row.id === "small" ? ["small modules", "small", "small", "small"] : namesOf(row.name);
      row.sizeText = bytesText(row.size);
    });
    return spec;
  }, view => view.addEventListener("pointermove", (_, item) => {
    const leaf = item && item.datum && item.datum.size > 0 ? item.datum : null;
    if (leaf) reading.textContent = `${leaf.name}: ${bytesText(leaf.size)} own ${measure}` + (leaf.unit ? `, recomputed in unit ${leaf.unit}` : "");
  }));
  const legend = element("div", {});
  const showLegend = () => legend.replaceChildren(legendOf(planRuns.length
      ? [["in a unit of the plan", "unit"], ["not in a unit", "kept"]] : [["modules", "kept"]]));
  showLegend();
  return section("map", "Modules by size",
                 element("div", {class: "controls"},
                         selectOf("Size", Object.values(sizes), 0, place => {
                           measure = Object.keys(sizes)[place];
                           chart.redraw();
                         }),
                         planRuns.length > 1 ? selectOf("Plan", planRuns.map(run => run.name), planShown, place => {
                           planShown = place;
                           chart.redraw();
                           showModules();
                         }) : null),
                 legend, chart.node, reading);
}

// The name without the root, and its last components, down to the last one.
function namesOf(name) {
  const parts = name.split(".");
  return [Math.max(1, parts.length - 1), 3, 2, 1].map(count => parts.slice(-count).join("."));
}

const moduleTables = element("div", {});

// "saves 3 aten.mm", as a list that opens.
function operatorList(planned) {
  if (!planned.operators) return "";
  const verbs = {save: "saved", recompute: "recomputed", skip: "skipped", offload: "offloaded"};
  const counts = Object.entries(planned.operators).map(([decision, names]) => (
      [verbs[decision], Object.values(names).reduce((sum, n) => sum + n, 0)]));
  return element("details", {},
                 element("summary", {}, counts.map(([verb, n]) => `${countText(n)} ${verb}`).join(", ")),
                 element("ul", {}, ...Object.entries(planned.operators).map(([decision, names]) => element(
                     "li", {}, `${verbs[decision]}: ` + Object.entries(names).map(([name, n]) => (n > 1 ? `${name} × ${n}` : name)).join(", ")))));
}

function showModules() {
  const run = planRuns[planShown];
  const bytes = value => (value === undefined ? "" : bytesText(value));
  const parts = [];
  if (run && run.units.length) {
    parts.push(element("h3", {}, `Units of ${run.name}`), searchableTable(`Units of ${run.name}`, [
      {title: "unit", text: true, name: true, value: planned => planned.name},
      {title: "discarded", value: planned => planned.discarded_bytes ?? -1, show: (_, planned) => bytes(planned.discarded_bytes)},
      {title: "recomputed", value: planned => planned.recompute_ms ?? -1, show: (_, planned) => (planned.recompute_ms === undefined ? "" : msText(planned.recompute_ms))},
      {title: "discard ratio", value: planned => planned.discard_ratio, show: value => value.toFixed(4)},
      {title: "operators", text: true, name: true, value: planned => (planned.operators ? JSON.stringify(planned.operators) : ""), show: (_, planned) => operatorList(planned)},
    ], run.units, planned => planned.name + " " + JSON.stringify(planned.operators || "")));
  }
  const units = unitsOfModules(run);
  const rows = tree.map((module, place) => ({...module, unit: units[place]}));
  parts.push(element("h3", {}, "All modules"), searchableTable("All modules, each with its totals", [
    {title: "module", text: true, name: true, value: module => module.name},
    ...(tree.some(module => module.lines) ? [{title: "lines", text: true, name: true, value: module => module.lines || ""}] : []),
    ...(tree.some(module => module.class) ? [{title: "class", text: true, value: module => module.class || ""}] : []),
    {title: "parameters", value: module => module.parameters, show: bytes},
    {title: "activations", value: module => module.activations, show: bytes},
    {title: "forward", value: module => module.forward_ms, show: msText},
    ...(run ? [{title: "in unit", text: true, name: true, value: module => module.unit}] : []),
  ], rows, module => `${module.name} ${module.class || ""} ${module.lines || ""} ${module.unit}`));
  moduleTables.replaceChildren(...parts);
}

function factsText() {
  const model = report.model;
  return [model.batch > 0 ? `batch ${model.batch}` : "", model.seq > 0 ? `sequence ${model.seq}` : "", model.dtype, model.optimizer,
          report.question, `from ${report.source}`].filter(Boolean).join(" · ");
}

showModules();
const sections = {
  summary: () => section("summary", "At a glance", summaryTable()),
  memory: memorySection,
  peak: peakSection,
  device: deviceSection,
  lines: linesSection,
  frontier: frontierSection,
  map: mapSection,
  modules: () => section("modules", "Modules", moduleTables),
};

if (report.parts) {
  showParts(report.parts.map(name => sections[name]()));
} else {
  showPage(document.title, factsText(), [
    ...Object.values(sections).map(make => make()), element("footer", {class: "quiet"}, report.caveat)]);
}
