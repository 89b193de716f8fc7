// The report of a step: docs/command_line.md, "acplan report".

const runs = report.runs;
const drawn = runs.filter(run => run.samples);
const phases = ["forward", "backward", "recomputation", "optimizer step"];
const totalOf = bytes => bytes.reduce((sum, value) => sum + value, 0);
const most = Math.max(1, ...runs.map(run => run.peak_bytes || 0));
const unit = most >= 2 ** 30 ? {name: "GiB", bytes: 2 ** 30} : {name: "MiB", bytes: 2 ** 20};
const inTime = drawn.length > 0 && drawn.every(run => run.samples.end_ms > 0);
const colorOf = run => "run-" + runs.indexOf(run) % 5;
let selected = drawn.length - 1;

// Where samples begin: each is drawn up to the next one.
function xsOf(run) {
  return inTime ? run.samples.begin_ms : run.samples.begin_step;
}

// Where the operators are that they are of.
function placesOf(run) {
  return inTime ? run.samples.ms : run.samples.step;
}

function endOf(run) {
  return inTime ? run.samples.end_ms : run.steps;
}

// Where the sample is that a run has at a place of the axis.
function sampleAt(run, x) {
  const xs = xsOf(run);
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

function summaryTable() {
  const answer = run => run.answer || {};
  const stepMs = run => (run.answer && run.answer.step_ms) || report.step_ms;
  const added = run => (run.recompute_ms || 0) + (answer(run).stall_ms || 0);
  const optional = show => value => (value === null || value === undefined ? "" : show(value));
  const facts = [
    {title: "peak", value: run => run.peak_bytes, show: optional(bytesText)},
    {title: "change", value: run => run.peak_bytes / runs[0].peak_bytes - 1,
     show: (value, run) => (run === runs[0] ? "" : (100 * value).toFixed(1) + "%")},
    {title: "budget", value: run => answer(run).budget_bytes, show: optional(bytesText)},
    {title: "step time", value: run => stepMs(run) + added(run), show: msText},
    {title: "recomputed", value: run => run.recompute_ms, show: optional(msText)},
    {title: "overhead", value: run => answer(run).overhead, show: optional(value => "+" + percentText(value))},
    {title: "bound", value: run => answer(run).bound_ms, show: optional(msText)},
    {title: "gap", value: run => answer(run).gap, show: optional(percentText)},
    {title: "found in", value: run => answer(run).seconds, show: optional(value => value.toFixed(2) + " s")},
    {title: "units", value: run => answer(run).units, show: optional(countText)},
    {title: "status", value: run => answer(run).status,
     show: optional(value => element("span", {class: value === "optimal" ? "good" : "warn"}, value))},
  ];
  const caption = "The step without a plan and with each plan. Bound: no plan recomputes less.";
  if (innerWidth >= 900) {
    return tableOf(caption, [{title: "step", text: true, name: true, value: run => run.name}, ...facts], runs);
  }
  // On a narrow screen a row would be cut: facts are rows, and runs columns.
  const isStated = fact => runs.some(run => fact.show(fact.value(run), run) !== "");
  return tableOf(caption, [
    {title: "step", text: true, value: fact => fact.title},
    ...runs.map(run => ({title: run.name, value: fact => fact.value(run), show: (value, fact) => fact.show(value, run)})),
  ], facts.filter(isStated));
}

// The rows at which a line of steps goes up or down, and its end.
function cornersOf(rows, end) {
  const corners = rows.filter((row, place) => (
      !place || row.y0 !== rows[place - 1].y0 || row.y1 !== rows[place - 1].y1));
  return [...corners, {...corners[corners.length - 1], x: end}];
}

// Data of the chart of memory: the selected run stacked, all runs as lines.
function memoryRows(run) {
  const xs = xsOf(run);
  const heights = report.kinds.map(() => []);
  run.samples.bytes.forEach((bytes, sample) => {
    let below = 0;
    bytes.forEach((value, kind) => heights[kind].push(
        {kind: report.kinds[kind], x: xs[sample], y0: below / unit.bytes, y1: (below += value) / unit.bytes}));
  });
  const stack = heights.flatMap(rows => cornersOf(rows, endOf(run)));
  const lines = drawn.flatMap(line => cornersOf(line.samples.bytes.map((bytes, sample) => (
      {run: line.name, color: `var(--${colorOf(line)})`, x: xsOf(line)[sample], y1: totalOf(bytes) / unit.bytes})), endOf(line)));
  const peaks = drawn.filter(line => line.peak_sample !== undefined).map(line => (
      {color: `var(--${colorOf(line)})`, x: placesOf(line)[line.peak_sample],
       y: totalOf(line.samples.bytes[line.peak_sample]) / unit.bytes}));
  return {stack, lines, peaks};
}

// Where the phases begin, each in the middle of its part.
function phaseRows(run) {
  const xs = xsOf(run);
  const firstOf = phase => xs[run.samples.phase.findIndex(value => value === phase)];
  const bounds = [0, firstOf(1) ?? endOf(run), firstOf(3) ?? endOf(run), endOf(run)];
  return ["forward", "backward", "optimizer"].map((name, place) => (
      {name, begin: bounds[place], end: bounds[place + 1], middle: (bounds[place] + bounds[place + 1]) / 2,
       share: (bounds[place + 1] - bounds[place]) / Math.max(...drawn.map(endOf))}));
}

const budgets = [...new Set(runs.map(run => run.answer && run.answer.budget_bytes).filter(Boolean))];

const lineEntries = () => [
  ...drawn.map(line => [`${line.name}: peak ${bytesText(line.peak_bytes)}`, colorOf(line), true]),
  ...budgets.map(bytes => [`budget ${bytesText(bytes)}`, "rule", "dashed"])];

function memorySpec(width) {
  const run = drawn[selected];
  const {stack, lines, peaks} = memoryRows(run);
  const kinds = report.kinds.filter((_, kind) => run.samples.bytes.some(bytes => bytes[kind] > 0));
  const highest = Math.max(most, ...budgets) / unit.bytes;
  const lineNames = lineEntries();
  const step = {interpolate: {value: "step-after"}};
  const x = {scale: "x", field: "x"};
  return {
    height: Math.max(240, Math.min(420, Math.round(width * 0.45))),
    signals: [
      {name: "cursor", value: placesOf(run)[run.peak_sample] || 0},
      {name: "pointed", on: [{events: "pointermove, pointerdown", update: "clamp(invert('x', x()), 0, domain('x')[1])"}]},
    ],
    data: [
      {name: "stack", values: stack}, {name: "lines", values: lines}, {name: "peaks", values: peaks},
      {name: "budgets", values: budgets.map(bytes => ({y: bytes / unit.bytes}))},
      {name: "phases", values: phaseRows(run).filter(phase => phase.share * width > 64)},
    ],
    scales: [
      {name: "x", type: "linear", range: "width", domain: [0, Math.max(...drawn.map(endOf))], zero: true},
      {name: "y", type: "linear", range: "height", domain: [0, highest * 1.03], nice: true, zero: true},
      {name: "color", type: "ordinal", domain: kinds, range: kinds.map(kind => `var(--${kind})`)},
      {name: "line", type: "ordinal", domain: lineNames.map(([name]) => name), range: lineNames.map(([, color]) => `var(--${color})`)},
    ],
    saved: marks => ({marks: marks.filter(mark => mark.name !== "cursor_rule"),
                      legends: [legendSpec("fill", "color", width), legendSpec("stroke", "line", width)]}),
    axes: [
      {orient: "left", scale: "y", title: `bytes in use (${unit.name})`, grid: true, tickCount: 6},
      {orient: "bottom", scale: "x", tickCount: Math.max(2, Math.floor(width / 110)),
       title: inTime ? "run-time since the step began (ms)" : report.of_operators ? "operators that have run" : "modules, forward and backward"},
    ],
    marks: [
      {type: "group", from: {facet: {name: "faceted", data: "stack", groupby: "kind"}}, marks: [
        {type: "area", from: {data: "faceted"}, aria: false, encode: {update: {
          ...step, x, y: {scale: "y", field: "y0"}, y2: {scale: "y", field: "y1"}, fill: {scale: "color", field: "kind"}}}}]},
      {type: "group", from: {facet: {name: "line", data: "lines", groupby: "run"}}, marks: [
        {type: "line", from: {data: "line"}, aria: false, encode: {update: {
          ...step, x, y: {scale: "y", field: "y1"}, stroke: {field: "color"}, strokeWidth: {value: 1.5}}}}]},
      {type: "rule", from: {data: "budgets"}, aria: false, encode: {update: {
        x: {value: 0}, x2: {field: {group: "width"}}, y: {scale: "y", field: "y"},
        stroke: {value: "var(--rule)"}, strokeWidth: {value: 2}, strokeDash: {value: [8, 4]}}}},
      {type: "symbol", from: {data: "peaks"}, aria: false, encode: {update: {
        x, y: {scale: "y", field: "y"}, size: {value: 80}, fill: {field: "color"},
        stroke: {value: "var(--background)"}, strokeWidth: {value: 2}}}},
      {type: "text", from: {data: "phases"}, aria: false, encode: {update: {
        x: {scale: "x", field: "middle"}, y: {value: 12}, text: {field: "name"}, align: {value: "center"},
        fill: {value: "var(--quiet)"}, fontSize: {value: 12}}}},
      {type: "rule", from: {data: "phases"}, aria: false, encode: {update: {
        x: {scale: "x", field: "end"}, y: {value: 0}, y2: {field: {group: "height"}},
        stroke: {value: "var(--quiet)"}, strokeDash: {value: [2, 3]}}}},
      {type: "rule", name: "cursor_rule", aria: false, encode: {update: {
        x: {scale: "x", signal: "cursor"}, y: {value: 0}, y2: {field: {group: "height"}},
        stroke: {value: "var(--text)"}, strokeWidth: {value: 1}}}},
    ],
  };
}

// What the chart says at a sample of the selected run, as lines.
function readingAt(run, sample) {
  const samples = run.samples;
  const bytes = samples.bytes[sample];
  const operator = samples.operators ? samples.operators[samples.operator[sample]] + " in " : "";
  const module = samples.modules[samples.module[sample]] || "the model";
  const line = samples.lines && samples.lines[samples.line[sample]];
  const when = samples.ms ? ` at ${msText(samples.ms[sample])}` : "";
  const other = drawn.filter(line => line !== run).map(line => {
    const place = inTime ? sampleAt(line, placesOf(run)[sample]) : Math.min(sample, line.samples.bytes.length - 1);
    return `${line.name} ${bytesText(totalOf(line.samples.bytes[place]))}`;
  });
  return {
    where: `step ${countText(samples.step[sample] + 1)} of ${countText(run.steps)}${when}, ` +
        `${phases[samples.phase[sample]]}: ${operator}${module}${line ? ", at " + line : ""}`,
    bytes: `${run.name} ${bytesText(totalOf(bytes))}: ` +
        report.kinds.map((kind, place) => [kind, bytes[place]]).filter(([, value]) => value > 0)
            .map(([kind, value]) => `${kind} ${bytesText(value)}`).join(", "),
    others: other.length && inTime ? `then: ${other.join(", ")}` : "",
  };
}

function memorySection() {
  if (!drawn.length) return null;
  const reading = element("div", {class: "reading", id: "reading"});
  const slider = element("input", {type: "range", min: 0, step: 1, id: "sample", "aria-describedby": "reading"});
  const legend = element("div", {});
  const chart = chartOf("Memory over the step", memorySpec, view => {
    view.addSignalListener("pointed", (_, x) => show(sampleAt(drawn[selected], x)));
    show(Number(slider.value));
  });
  function show(sample) {
    const run = drawn[selected];
    const said = readingAt(run, sample);
    slider.value = sample;
    slider.setAttribute("aria-valuetext", `${said.where}. ${said.bytes}`);
    reading.replaceChildren(element("div", {}, said.where), element("div", {}, said.bytes), element("div", {class: "quiet"}, said.others));
    if (chart.view) chart.view.signal("cursor", placesOf(run)[sample]).run();
  }
  function select(place) {
    selected = place;
    const run = drawn[selected];
    slider.max = run.samples.bytes.length - 1;
    slider.value = run.peak_sample || 0;
    legend.replaceChildren(
        legendOf(report.kinds.filter((_, kind) => run.samples.bytes.some(bytes => bytes[kind] > 0)).map(kind => [kind, kind])),
        legendOf(lineEntries()));
    if (chart.view) chart.redraw();
    show(Number(slider.value));
  }
  const note = drawn[selected].steps > drawn[selected].samples.bytes.length
      ? `The ${countText(drawn[selected].steps)} operators are divided into ${countText(drawn[selected].samples.bytes.length)} parts, equal in length. ` +
        "The chart shows the peak of each part, so no peak is missing."
      : report.of_operators ? "The chart shows every operator that runs."
      : "A profile has no operators: the chart shows the peak of each module, and one peak for each plan.";
  slider.addEventListener("input", () => show(Number(slider.value)));
  select(selected);
  return section("memory", "Memory over the step",
                 element("div", {class: "controls"},
                         drawn.length > 1 ? selectOf("Stacked by kind", drawn.map(run => run.name), selected, select) : null,
                         element("button", {type: "button", click: () => show(drawn[selected].peak_sample)}, "Go to the peak")),
                 legend, chart.node,
                 element("label", {class: "slider quiet", for: "sample"}, "Step"), slider, reading,
                 element("p", {class: "quiet"}, note));
}

function peakSection() {
  const shown = runs.filter(run => run.peak_by_kind);
  if (!shown.length) return null;
  const rows = [...report.kinds.map((kind, place) => ({kind, bytes: shown.map(run => run.peak_by_kind[place])})),
                {kind: "all", bytes: shown.map(run => totalOf(run.peak_by_kind))}];
  return section("peak", "Memory at the peak", tableOf(
      "Bytes at the peak of each run, by kind. Activations are results of the forward pass, recomputed bytes those of units that run again.",
      [{title: "kind", text: true, value: row => row.kind},
       ...shown.map((run, place) => ({title: run.name, value: row => row.bytes[place], show: bytesText}))],
      rows.filter(row => totalOf(row.bytes) > 0)));
}

function linesSection() {
  const shown = runs.filter(run => run.lines);
  if (!shown.length) return null;
  const rows = new Map();
  shown.forEach((run, place) => run.lines.forEach(line => {
    const row = rows.get(line.source) || {source: line.source, operators: new Set(), bytes: shown.map(() => 0)};
    row.bytes[place] = line.bytes;
    line.operators.forEach(name => row.operators.add(name));
    rows.set(line.source, row);
  }));
  return section("lines", "Memory at the peak by line", searchableTable(
      "Bytes at the peak of each run, by the line of Python that allocated them.",
      [{title: "line", text: true, name: true, value: row => row.source || "before the step, or no line"},
       ...shown.map((run, place) => ({title: run.name, value: row => row.bytes[place], show: bytesText})),
       {title: "operators", text: true, name: true, value: row => [...row.operators].join(", ")}],
      [...rows.values()], row => `${row.source} ${[...row.operators].join(" ")}`));
}

function frontierRows() {
  const points = report.frontier.points.filter(point => point.peak_bytes !== undefined).map(point => (
      {x: point.budget_bytes / unit.bytes, y: point.recompute_ms, kind: point.status}));
  const plans = runs.filter(run => run.answer && run.answer.budget_bytes).map(run => (
      {x: run.answer.budget_bytes / unit.bytes, y: run.recompute_ms, color: `var(--${colorOf(run)})`}));
  // The least recomputation that is known at each budget: of the points and of the plans.
  const line = [];
  for (const {x, y} of [...points, ...plans].sort((a, b) => a.x - b.x || a.y - b.y)) {
    line.push({x, y: Math.min(y, line.length ? line[line.length - 1].y : y)});
  }
  return {points, plans, line};
}

function frontierSpec(width) {
  const {points, plans, line} = frontierRows();
  const all = [...points, ...plans];
  const [x, y] = [{scale: "x", field: "x"}, {scale: "y", field: "y"}];
  return {
    height: Math.max(220, Math.min(340, Math.round(width * 0.4))),
    data: [{name: "points", values: points}, {name: "plans", values: plans}, {name: "line", values: line}],
    scales: [
      {name: "x", type: "linear", range: "width", zero: false, nice: true, domain: [Math.min(...all.map(p => p.x)), Math.max(...all.map(p => p.x))]},
      {name: "y", type: "linear", range: "height", zero: true, nice: true, domain: [0, Math.max(1e-9, ...all.map(p => p.y)) * 1.05]},
    ],
    axes: [
      {orient: "left", scale: "y", title: "recomputed (ms)", grid: true, tickCount: 6},
      {orient: "bottom", scale: "x", title: `budget (${unit.name})`, tickCount: Math.max(2, Math.floor(width / 90))},
    ],
    marks: [
      {type: "line", from: {data: "line"}, aria: false, encode: {update: {
        interpolate: {value: "step-after"}, x, y, stroke: {value: "var(--fit)"}, strokeWidth: {value: 2}}}},
      {type: "symbol", from: {data: "points"}, aria: false, encode: {update: {
        x, y, size: {value: 60}, stroke: {value: "var(--fit)"}, strokeWidth: {value: 2},
        fill: [{test: "datum.kind === 'optimal'", value: "var(--fit)"}, {value: "var(--background)"}]}}},
      {type: "symbol", from: {data: "plans"}, aria: false, encode: {update: {
        x, y, size: {value: 170}, shape: {value: "diamond"}, fill: {field: "color"},
        stroke: {value: "var(--background)"}, strokeWidth: {value: 1.5}}}},
    ],
  };
}

function frontierSection() {
  if (!report.frontier || !report.frontier.points.some(point => point.peak_bytes !== undefined)) return null;
  const columns = [
    {title: "budget", value: point => point.budget_bytes, show: bytesText},
    {title: "peak", value: point => point.peak_bytes, show: value => (value === undefined ? "" : bytesText(value))},
    {title: "recomputed", value: point => point.recompute_ms, show: value => (value === undefined ? "" : msText(value))},
    {title: "bound", value: point => point.bound_ms, show: value => (value === undefined ? "" : msText(value))},
    {title: "overhead", value: point => point.overhead, show: value => (value === undefined ? "" : "+" + percentText(value))},
    {title: "status", text: true, value: point => point.status},
  ];
  const planned = runs.filter(run => run.answer && run.answer.budget_bytes);
  const statuses = new Set(report.frontier.points.map(point => point.status));
  const entries = [];
  if (statuses.has("optimal")) entries.push(["least recomputation at this budget, proven", "fit", "circle"]);
  if (statuses.has("feasible")) entries.push(["best plan found before a limit", "fit", "hollow"]);
  return section("frontier", "Memory against time",
                 element("p", {}, "Recomputation of a step at each budget."),
                 legendOf([...entries, ...planned.map(run => [run.name, colorOf(run), "diamond"]),
                           ["no more than this is recomputed at budgets between", "fit", true]]),
                 chartOf("Recomputation against the budget", frontierSpec).node,
                 element("details", {}, element("summary", {}, "The points as a table"),
                         tableOf("Plans at budgets", columns, report.frontier.points)));
}
