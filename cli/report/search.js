// The report of strategies of training: docs/command_line.md, "acplan report".

const best = report.best;
const degrees = ["tp", "pp", "vp", "cp", "ep", "dp", "zero", "mbs"];
const timeText = seconds => (seconds >= 1 ? seconds.toFixed(3) + " s" : msText(1000 * seconds));
const partNames = Object.keys(best[0].parts_s).filter(part => best.some(entry => entry.parts_s[part] > 0.001 * entry.iteration_s));
const colors = ["parameters", "recomputed", "optimizer", "gradients", "activations", "inputs", "temporaries", "buffers"];
const colorAt = place => colors[place % colors.length];
const wordsOf = name => name.replaceAll("_", " ");
let chosen = 0;

function nameOf(entry) {
  const said = degrees.filter(key => entry.strategy[key] !== undefined).map(key => `${key} ${entry.strategy[key]}`);
  return said.join(", ") + `, recompute ${entry.strategy.recompute ?? "none"}`;
}

// Stacked bars, a group each.
function barsOf(label, rows, groups, parts, axis, groupTitle) {
  return chartOf(label, width => ({
    height: 34 * groups().length + 56,
    data: [{name: "rows", values: rows(), transform: [{type: "stack", groupby: ["group"], field: "value"}]}],
    scales: [
      {name: "x", type: "linear", range: "width", nice: true, zero: true, domain: {data: "rows", field: "y1"}},
      {name: "y", type: "band", range: "height", padding: 0.25, domain: groups()},
      {name: "color", type: "ordinal", domain: parts, range: parts.map((_, place) => `var(--${colorAt(place)})`)},
    ],
    saved: () => ({legends: [legendSpec("fill", "color", width)]}),
    axes: [{orient: "left", scale: "y", title: groupTitle},
           {orient: "bottom", scale: "x", title: axis, grid: true, tickCount: Math.max(2, Math.floor(width / 90))}],
    marks: [{type: "rect", from: {data: "rows"}, aria: false, encode: {update: {
      y: {scale: "y", field: "group"}, height: {scale: "y", band: 1}, x: {scale: "x", field: "y0"}, x2: {scale: "x", field: "y1"},
      fill: {scale: "color", field: "part"}, stroke: {value: "var(--background)"}}}}],
  }));
}

function tradeSpec(width) {
  const rows = best.map((entry, place) => ({x: gib(entry.peak_bytes), y: 1000 * entry.iteration_s, place}));
  const budget = gib(report.budget_bytes);
  return {
    height: Math.max(220, Math.min(340, Math.round(width * 0.4))),
    signals: [{name: "chosen", value: chosen}],
    data: [{name: "rows", values: rows}, {name: "budget", values: [{x: budget}]}],
    scales: [
      {name: "x", type: "linear", range: "width", nice: true, zero: false, domain: [Math.min(...rows.map(row => row.x)), Math.max(budget, ...rows.map(row => row.x))]},
      {name: "y", type: "linear", range: "height", nice: true, zero: false, domain: {data: "rows", field: "y"}},
    ],
    axes: [
      {orient: "left", scale: "y", title: "iteration (ms)", grid: true, tickCount: 6},
      {orient: "bottom", scale: "x", title: "bytes in use on the fullest stage (GiB)", tickCount: Math.max(2, Math.floor(width / 90))},
    ],
    marks: [
      {type: "rule", from: {data: "budget"}, aria: false, encode: {update: {
        x: {scale: "x", field: "x"}, y: {value: 0}, y2: {field: {group: "height"}},
        stroke: {value: "var(--rule)"}, strokeWidth: {value: 2}, strokeDash: {value: [8, 4]}}}},
      {type: "symbol", from: {data: "rows"}, aria: false, encode: {update: {
        x: {scale: "x", field: "x"}, y: {scale: "y", field: "y"}, cursor: {value: "pointer"},
        size: {signal: "datum.place === chosen ? 220 : 80"}, fill: {value: "var(--fit)"},
        stroke: {value: "var(--background)"}, strokeWidth: {value: 2}}}},
    ],
  };
}

function strategyColumns() {
  const setting = key => entry => entry.strategy[key] ?? null;
  return [
    {title: "rank", value: entry => best.indexOf(entry) + 1},
    ...degrees.map(key => ({title: key.toUpperCase(), value: setting(key)})),
    {title: "recompute", text: true, value: entry => String(entry.strategy.recompute ?? "none")},
    {title: "iteration", value: entry => entry.iteration_s, show: timeText},
    {title: "tokens/s of a GPU", value: entry => entry.tokens_per_gpu_s, show: countText},
    {title: "MFU", value: entry => entry.model_utilisation, show: value => (100 * value).toFixed(1) + "%"},
    {title: "memory", value: entry => entry.peak_bytes, show: bytesText},
    {title: "fits", text: true, value: entry => (entry.fits ? "yes" : "no")},
  ];
}

const stageBars = barsOf("Memory of each stage", () => best[chosen].stages.flatMap((stage, place) => stage.bytes.map(
    (bytes, kind) => ({group: String(place), part: report.stage_kinds[kind], value: gib(bytes)}))),
    () => best[chosen].stages.map((_, place) => String(place)), report.stage_kinds, "bytes in use (GiB)", "stage");
const shownTimes = best.slice(0, 20);
const timeBars = barsOf("Time of an iteration by part", () => shownTimes.flatMap((entry, place) => partNames.map(
    part => ({group: String(place + 1), part: wordsOf(part), value: 1000 * entry.parts_s[part]}))),
    () => shownTimes.map((_, place) => String(place + 1)), partNames.map(wordsOf), "time (ms)", "rank");

const reading = element("div", {class: "reading", role: "status"});
const stageTable = element("div", {});
const trade = chartOf("Time against memory", tradeSpec, view => view.addEventListener("click", (_, item) => {
  if (item && item.datum && item.datum.place !== undefined) choose(item.datum.place);
}));
const picker = selectOf("Strategy", best.map((entry, place) => `${place + 1}: ${nameOf(entry)}`), 0, choose);

function choose(place) {
  chosen = place;
  picker.querySelector("select").value = place;
  const entry = best[place];
  reading.textContent = `${place + 1}: ${nameOf(entry)}: ${timeText(entry.iteration_s)} an iteration, ` +
      `${countText(entry.tokens_per_gpu_s)} tokens/s of a GPU, ${bytesText(entry.peak_bytes)} of ${bytesText(report.budget_bytes)}`;
  stageTable.replaceChildren(tableOf("Bytes in use of each stage", [
    {title: "stage", value: stage => entry.stages.indexOf(stage)},
    ...report.stage_kinds.map((kind, k) => ({title: kind, value: stage => stage.bytes[k], show: bytesText})),
    {title: "all", value: stage => stage.total_bytes, show: bytesText},
  ], entry.stages));
  if (trade.view) trade.view.signal("chosen", place).run();
  if (stageBars.view) stageBars.redraw();
}

choose(0);
const first = best[0].strategy;
const counts = report.strategies === undefined ? "one strategy"
    : `${countText(report.strategies)} strategies, ${countText(report.evaluated)} evaluated, ${countText(report.fitting)} fit, the best ${countText(best.length)} shown`;
showPage(`Training of ${report.model}`,
         [`${first.gpus ?? "?"} × ${first.gpu ?? "GPU"}`, `${first.gbs ?? "?"} sequences of ${first.seq ?? "?"} tokens an iteration`,
          `${bytesText(report.budget_bytes)} a GPU`, counts, `from ${report.source}`].join(" · "), [
  section("strategies", "Strategies", searchableTable("Strategies, the fastest first", strategyColumns(), best, nameOf)),
  section("trade", "Time against memory", element("div", {class: "controls"}, picker),
          legendOf([["a strategy", "fit"], [`budget ${bytesText(report.budget_bytes)}`, "rule", "dashed"]]), trade.node, reading),
  section("time", "Where the time goes", legendOf(partNames.map((part, place) => [wordsOf(part), colorAt(place)])), timeBars.node),
  section("stages", "Where the memory goes", legendOf(report.stage_kinds.map((kind, place) => [kind, colorAt(place)])), stageBars.node, stageTable),
]);
