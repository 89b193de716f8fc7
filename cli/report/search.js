// The report of strategies of training: docs/command_line.md, "acplan report".

const best = report.best;
const degrees = ["tp", "pp", "vp", "cp", "ep", "dp", "zero", "mbs"].filter(
    key => best.some(entry => entry.strategy[key] !== undefined));
const isTraining = best[0].tokens_per_gpu_s !== undefined;
const kinds = report.stage_kinds.filter((_, kind) => best.some(entry => entry.stages.some(stage => stage.bytes[kind] > 0)));
const kindPlace = kind => report.stage_kinds.indexOf(kind);
const rateOf = entry => (isTraining ? entry.tokens_per_gpu_s : entry.samples_per_s);
const rateName = isTraining ? "tokens/s per GPU" : "samples/s";
const sampleText = rate => (rate >= 1000 ? countText(rate) : rate.toFixed(3));
const memoryUnit = Math.max(...best.map(entry => entry.peak_bytes)) >= 2 ** 30 ? {name: "GiB", bytes: 2 ** 30} : {name: "MiB", bytes: 2 ** 20};
const inUnit = bytes => bytes / memoryUnit.bytes;
const rateText = entry => (isTraining ? `${countText(entry.tokens_per_gpu_s)} tokens/s per GPU` : `${sampleText(entry.samples_per_s)} samples/s`);
// The bytes that tensors may have on a GPU depend on the communicators of the strategy.
const limitOf = entry => entry.budget_bytes ?? report.budget_bytes;
const limits = best.map(limitOf).filter(bytes => bytes !== undefined);
const leastLimit = Math.min(...limits);
const limitText = [...new Set([leastLimit, Math.max(...limits)].map(bytesText))].join(" to ");
const ofLimit = entry => (limits.length ? ` of ${bytesText(limitOf(entry))}` : "");
const timeText = seconds => (seconds >= 1 ? seconds.toFixed(3) + " s" : msText(1000 * seconds));
const partNames = Object.keys(best[0].parts_s).filter(part => best.some(entry => entry.parts_s[part] > 0.001 * entry.iteration_s));
const colors = ["parameters", "recomputed", "optimizer", "gradients", "activations", "inputs", "temporaries", "buffers"];
const colorAt = place => colors[place % colors.length];
// The words of Calculon's names of parts; other names are words.
const words = {fw: "forward", bw: "backward", optim_step: "optimizer step", dp_comm_exposed: "data parallel, exposed",
               tp_comm_exposed: "tensor parallel, exposed", pp_comm_exposed: "pipeline parallel, exposed"};
const wordsOf = name => words[name] || name.replaceAll("_", " ");
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
  const rows = best.map((entry, place) => ({x: inUnit(entry.peak_bytes), y: rateOf(entry), place}));
  const budgets = limits.length ? [inUnit(leastLimit)] : [];
  // Strategies that differ little shall look so: an axis has a tenth of its values at least.
  const domainOf = values => {
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return [Math.min(least, 0.9 * most), most];
  };
  return {
    height: Math.max(220, Math.min(340, Math.round(width * 0.4))),
    signals: [{name: "chosen", value: chosen}],
    data: [{name: "rows", values: rows}, {name: "budget", values: budgets.map(x => ({x}))}],
    scales: [
      {name: "x", type: "linear", range: "width", nice: true, zero: false, domain: domainOf([...budgets, ...rows.map(row => row.x)])},
      {name: "y", type: "linear", range: "height", nice: true, zero: false, domain: domainOf(rows.map(row => row.y))},
    ],
    axes: [
      {orient: "left", scale: "y", title: rateName, grid: true, tickCount: 6},
      {orient: "bottom", scale: "x", title: `bytes in use on the fullest stage (${memoryUnit.name})`, tickCount: Math.max(2, Math.floor(width / 90))},
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
    ...(isTraining ? [
      {title: "tokens/s per GPU", value: entry => entry.tokens_per_gpu_s, show: countText},
      {title: "MFU", value: entry => entry.model_utilisation, show: value => (100 * value).toFixed(1) + "%"},
    ] : [{title: "samples/s", value: entry => entry.samples_per_s, show: sampleText}]),
    {title: "memory", value: entry => entry.peak_bytes, show: bytesText},
    ...(isTraining ? [{title: "fits", text: true, value: entry => (entry.fits ? "yes" : "no")}] : []),
    ...(best.some(entry => entry.budget_bytes !== best[0].budget_bytes) ? [
      {title: "budget", value: entry => entry.budget_bytes, show: bytesText}] : []),
  ];
}

const stageBars = barsOf("Memory of each stage", () => best[chosen].stages.flatMap((stage, place) => kinds.map(
    kind => ({group: String(place), part: kind, value: inUnit(stage.bytes[kindPlace(kind)])}))),
    () => best[chosen].stages.map((_, place) => String(place)), kinds, `bytes in use (${memoryUnit.name})`, "stage");
const shownTimes = best.slice(0, 20);
const timeBars = barsOf("Time per iteration by part", () => shownTimes.flatMap((entry, place) => partNames.map(
    part => ({group: String(place + 1), part: wordsOf(part), value: 1000 * entry.parts_s[part]}))),
    () => shownTimes.map((_, place) => String(place + 1)), partNames.map(wordsOf), "time (ms)", "rank");

const reading = element("div", {class: "reading", role: "status"});
const stageTable = element("div", {});
const trade = chartOf("Speed against memory", tradeSpec, view => view.addEventListener("click", (_, item) => {
  if (item && item.datum && item.datum.place !== undefined) choose(item.datum.place);
}));
const picker = selectOf("Strategy", best.map((entry, place) => `${place + 1}: ${nameOf(entry)}`), 0, choose);

function choose(place) {
  chosen = place;
  picker.querySelector("select").value = place;
  const entry = best[place];
  reading.textContent = `${place + 1}: ${nameOf(entry)}: ${timeText(entry.iteration_s)} per iteration, ` +
      `${rateText(entry)}, ${bytesText(entry.peak_bytes)}${ofLimit(entry)}`;
  stageTable.replaceChildren(tableOf("Bytes in use of each stage", [
    {title: "stage", value: stage => entry.stages.indexOf(stage)},
    ...kinds.map(kind => ({title: kind, value: stage => stage.bytes[kindPlace(kind)], show: bytesText})),
    {title: "all", value: stage => stage.total_bytes, show: bytesText},
  ], entry.stages));
  if (trade.view) trade.view.signal("chosen", place).run();
  if (stageBars.view) stageBars.redraw();
}

choose(0);
const first = best[0].strategy;
const counts = report.strategies === undefined ? (best.length > 1 ? `the best ${countText(best.length)} strategies` : "one strategy")
    : `${countText(report.strategies)} strategies, ${countText(report.evaluated)} evaluated, ${countText(report.fitting)} fit, the best ${countText(best.length)} shown`;
showPage(isTraining ? `Training of ${report.model}` : `Strategies of ${report.model}`,
         [`${first.gpus ?? "?"} × ${first.gpu ?? "GPU"}`, `${first.gbs ?? "?"} sequences${isTraining ? ` of ${first.seq ?? "?"} tokens` : ""} per iteration`,
          ...(limits.length ? [`${limitText} for tensors on a GPU`] : []), counts, `from ${report.source}`].join(" · "), [
  section("strategies", "Strategies", searchableTable("Strategies, the fastest first", strategyColumns(), best, nameOf)),
  section("trade", "Speed against memory", element("div", {class: "controls"}, picker),
          legendOf([["a strategy; the chosen one is larger", "fit", "circle"], ...(limits.length ? [[`${limitText.includes(" to ") ? "smallest budget" : "budget"} ${bytesText(leastLimit)}`, "rule", "dashed"]] : [])]), trade.node, reading),
  section("time", "Where the time goes", legendOf(partNames.map((part, place) => [wordsOf(part), colorAt(place)])), timeBars.node),
  section("stages", "Where the memory goes", legendOf(kinds.map((kind, place) => [kind, colorAt(place)])), stageBars.node, stageTable),
]);
