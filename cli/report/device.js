// The training run on PyTorch's allocator: docs/reports.md.

const onDevice = report.runs.filter(run => run.device);
const blockKinds = [...report.kinds, ...report.free_kinds || []];
const blockColors = [...report.kinds, "free", "hole"];
const allocatorText = name => ({native: "native segments", "expandable_segments:True": "expandable segments"}[name] || name);

// A run of batches in their order does not repeat; its peak has a place.
function endText(drawn) {
  if (!drawn.fits) return drawn.peak && drawn.peak.place ? `out of memory: ${drawn.peak.place}` : "out of memory";
  if (drawn.peak && drawn.peak.place) return `after ${countText(drawn.iterations)} batches`;
  return drawn.period ? `repeats from iteration ${drawn.iterations - drawn.period + 1}` : `no repetition in ${drawn.iterations} iterations`;
}

function deviceTable() {
  const rows = onDevice.flatMap(run => run.device.runs.map(drawn => ({run, drawn})));
  const ofPeak = key => row => (row.drawn.peak ? row.drawn.peak[key] : 0);
  return tableOf("The most that a run allocates and reserves. Holes: free bytes at the peak of reserved bytes that the allocator cannot give back.", [
    {title: "step", text: true, name: true, value: row => row.run.name},
    {title: "segments", text: true, value: row => allocatorText(row.drawn.allocator)},
    {title: "allocated", value: row => row.drawn.allocated_bytes, show: bytesText},
    {title: "reserved", value: row => row.drawn.reserved_bytes, show: bytesText},
    {title: "holes", value: ofPeak("hole_bytes"), show: bytesText},
    ...(rows.some(row => row.drawn.least_device_bytes) ? [
      {title: "least device", value: row => row.drawn.least_device_bytes, show: bytes => (bytes ? bytesText(bytes) : "none")}] : []),
    {title: "retries", value: row => row.drawn.retries, show: countText},
    {title: "ends", text: true, value: row => row.drawn.fits,
     show: (fits, row) => element("span", {class: fits ? "good" : "warn"}, endText(row.drawn))},
  ], rows);
}

function timelineSpec(width, run, drawn) {
  const line = drawn.timeline;
  const isInMs = line.ms[line.ms.length - 1] > 0;
  const rows = line.ms.map((ms, k) => (
      {x: isInMs ? ms : k, allocated: line.allocated[k] / unit.bytes, reserved: line.reserved[k] / unit.bytes}));
  const limit = run.device.device_bytes ? [{y: run.device.device_bytes / unit.bytes}] : [];
  const last = rows[rows.length - 1].x;
  const ends = [];
  for (let k = 1; isInMs && drawn.iteration_ms > 0 && k * drawn.iteration_ms < last; ++k) ends.push({x: k * drawn.iteration_ms});
  const highest = Math.max(1e-9, ...rows.map(row => row.reserved), ...limit.map(row => row.y));
  const x = {scale: "x", field: "x"};
  const names = ["allocated", "reserved", ...limit.map(() => "device")];
  const colors = {allocated: "var(--activations)", reserved: "var(--text)", device: "var(--rule)"};
  return {
    height: Math.max(200, Math.min(320, Math.round(width * 0.35))),
    data: [{name: "rows", values: rows}, {name: "limit", values: limit}, {name: "ends", values: ends},
           {name: "peak", values: drawn.peak ? [{x: isInMs ? drawn.peak.ms : line.reserved.indexOf(Math.max(...line.reserved)),
                                                 y: drawn.peak.reserved_bytes / unit.bytes}] : []}],
    scales: [
      {name: "x", type: "linear", range: "width", domain: [0, Math.max(last, 1e-9)], zero: true},
      {name: "y", type: "linear", range: "height", domain: [0, highest * 1.03], nice: true, zero: true},
      {name: "line", type: "ordinal", domain: names, range: names.map(name => colors[name])},
    ],
    saved: marks => ({marks, legends: [legendSpec("stroke", "line", width)]}),
    axes: [
      {orient: "left", scale: "y", title: `bytes (${unit.name})`, grid: true, tickCount: 5},
      {orient: "bottom", scale: "x", tickCount: Math.max(2, Math.floor(width / 110)),
       title: isInMs ? "run-time since the first iteration began (ms)" : "parts of the run"},
    ],
    marks: [
      {type: "area", from: {data: "rows"}, aria: false, encode: {update: {
        x, y: {scale: "y", field: "allocated"}, y2: {scale: "y", value: 0}, interpolate: {value: "step-after"}, fill: {value: colors.allocated}}}},
      {type: "line", from: {data: "rows"}, aria: false, encode: {update: {
        x, y: {scale: "y", field: "reserved"}, interpolate: {value: "step-after"}, stroke: {value: colors.reserved}, strokeWidth: {value: 2}}}},
      {type: "rule", from: {data: "limit"}, aria: false, encode: {update: {
        x: {value: 0}, x2: {field: {group: "width"}}, y: {scale: "y", field: "y"},
        stroke: {value: colors.device}, strokeWidth: {value: 2}, strokeDash: {value: [8, 4]}}}},
      {type: "rule", from: {data: "ends"}, aria: false, encode: {update: {
        x, y: {value: 0}, y2: {field: {group: "height"}}, stroke: {value: "var(--quiet)"}, strokeDash: {value: [2, 3]}}}},
      {type: "symbol", from: {data: "peak"}, aria: false, encode: {update: {
        x, y: {scale: "y", field: "y"}, size: {value: 80}, fill: {value: "var(--text)"},
        stroke: {value: "var(--background)"}, strokeWidth: {value: 2}}}},
    ],
  };
}

// The blocks in the order in which they are drawn: segments of the large pool first.
function blocksOf(drawn) {
  if (!drawn.peak) return [];
  const {blocks, small_segments: small} = drawn.peak;
  const isSmall = new Set(small);
  const rows = blocks.segment.map((segment, k) => ({
    segment, isSmall: isSmall.has(segment), bytes: blocks.bytes[k], count: blocks.count[k], kind: blocks.kind[k],
    operator: blocks.names[blocks.operator[k]], module: blocks.names[blocks.module[k]], line: blocks.names[blocks.line[k]]}));
  return [...rows.filter(row => !row.isSmall), ...rows.filter(row => row.isSmall)];
}

// Segments one behind the other, in rows of equal bytes, with a gap before each.
function piecesOf(blocks, width) {
  const rowCount = width < 600 ? 36 : 24;
  const total = blocks.reduce((sum, block) => sum + block.bytes, 0);
  const segments = new Set(blocks.map(block => block.segment)).size;
  const perRow = total / Math.max(1, rowCount - Math.min(rowCount / 2, 2 * segments / width));
  const gap = perRow * 2 / width;
  const pieces = [];
  let at = 0, row = 0;
  blocks.forEach((block, place) => {
    if (place && block.segment !== blocks[place - 1].segment) at += gap;
    let remaining = block.bytes;
    while (remaining > 0) {
      if (at >= perRow) { at = 0; ++row; }
      const bytes = Math.min(remaining, perRow - at);
      pieces.push({block: place, row, x0: at / perRow, x1: (at + bytes) / perRow, kind: blockKinds[block.kind]});
      at += bytes;
      remaining -= bytes;
    }
  });
  return {pieces, rowCount: row + 1};
}

function segmentsSpec(width, blocks, cursor) {
  const {pieces, rowCount} = piecesOf(blocks, width);
  const kinds = blockKinds.filter((_, kind) => blocks.some(block => block.kind === kind));
  const rowHeight = 14;
  return {
    height: rowCount * rowHeight,
    signals: [
      {name: "cursor", value: cursor},
      {name: "pointed", on: [{events: "@block:pointermove, @block:pointerdown", update: "datum.block"}]},
    ],
    data: [{name: "pieces", values: pieces}],
    scales: [
      {name: "x", type: "linear", range: "width", domain: [0, 1]},
      {name: "color", type: "ordinal", domain: kinds, range: kinds.map(kind => `var(--${blockColors[blockKinds.indexOf(kind)]})`)},
    ],
    saved: marks => ({marks, legends: [legendSpec("fill", "color", width)]}),
    marks: [{type: "rect", name: "block", from: {data: "pieces"}, aria: false, encode: {update: {
      x: {scale: "x", field: "x0"}, x2: {scale: "x", field: "x1"},
      y: {signal: `datum.row * ${rowHeight}`}, height: {value: rowHeight - 2}, fill: {scale: "color", field: "kind"},
      stroke: {value: "var(--text)"}, strokeWidth: {signal: "datum.block === cursor ? 2 : 0"},
      zindex: {signal: "datum.block === cursor ? 1 : 0"}}}}],
  };
}

function blockReading(block, place, count) {
  const several = block.count > 1 ? `${countText(block.count)} blocks, the largest: ` : "";
  const isFree = block.kind >= report.kinds.length;
  return {
    what: `block ${countText(place + 1)} of ${countText(count)}: ${bytesText(block.bytes)}, ${several}${blockKinds[block.kind]}`,
    where: `segment ${block.segment} of the ${block.isSmall ? "small" : "large"} pool`,
    maker: isFree ? "" : !block.operator ? "made before or between steps"
        : `made by ${block.operator}${block.module ? " in " + block.module : ""}${block.line ? ", at " + block.line : ""}`,
  };
}

function deviceSection(what = "The training run on PyTorch's allocator: the model is put on the device, then iterations follow until memory repeats.") {
  if (!onDevice.length) return null;
  let place = onDevice.length - 1, setting = 0, blocks = [];
  const drawnRun = () => onDevice[place].device.runs[setting];
  const reading = element("div", {class: "reading", id: "block-reading"});
  const slider = element("input", {type: "range", min: 0, step: 1, id: "block", "aria-describedby": "block-reading"});
  const legends = [element("div", {}), element("div", {})];
  const note = element("p", {class: "quiet", role: "status"});
  const timeline = chartOf("Allocated and reserved memory of the run", width => timelineSpec(width, onDevice[place], drawnRun()));
  const segments = chartOf("Segments at the peak of reserved memory", width => segmentsSpec(width, blocks, Number(slider.value)), view => {
    view.addSignalListener("pointed", (_, block) => show(block));
  });
  function show(block) {
    if (!blocks.length || block === null || block === undefined) return;
    const said = blockReading(blocks[block], block, blocks.length);
    slider.value = block;
    slider.setAttribute("aria-valuetext", `${said.what}. ${said.where}. ${said.maker}`);
    reading.replaceChildren(element("div", {}, said.what), element("div", {}, said.maker), element("div", {class: "quiet"}, said.where));
    if (segments.view) segments.view.signal("cursor", block).run();
  }
  function draw() {
    const run = onDevice[place], drawn = drawnRun();
    blocks = blocksOf(drawn);
    slider.max = Math.max(0, blocks.length - 1);
    slider.value = blocks.reduce((most, block, k) => (block.bytes > blocks[most].bytes ? k : most), 0);
    legends[0].replaceChildren(legendOf([["allocated", "activations"], ["reserved", "text", true],
                                         ...(run.device.device_bytes ? [[`device ${bytesText(run.device.device_bytes)}`, "rule", "dashed"]] : [])]));
    legends[1].replaceChildren(legendOf(blockKinds.map((kind, k) => [kind, blockColors[k]]).filter((_, k) => blocks.some(block => block.kind === k))));
    const peak = drawn.peak;
    note.textContent = !peak ? "" : `${drawn.fits ? "At the peak" : "When memory runs out"}: ${bytesText(peak.reserved_bytes)} reserved, ` +
        `${bytesText(peak.allocated_bytes)} allocated, ${bytesText(peak.hole_bytes)} lost to holes` +
        (peak.place ? `, at ${peak.place}` : "") +
        (run.device.state_first ? "; the optimizer's state is made before the first step." : ".");
    for (const chart of [timeline, segments]) if (chart.view) chart.redraw();
    show(Number(slider.value));
  }
  slider.addEventListener("input", () => show(Number(slider.value)));
  const controls = element("div", {class: "controls"},
      selectOf("Step", onDevice.map(run => run.name), place, chosen => { place = chosen; draw(); }),
      selectOf("Segments", onDevice[place].device.runs.map(drawn => allocatorText(drawn.allocator)), setting, chosen => { setting = chosen; draw(); }));
  draw();
  return section("device", "On a device",
                 element("p", {}, what),
                 deviceTable(), controls, legends[0], timeline.node,
                 element("h3", {}, "Segments at the peak"), note, legends[1], segments.node,
                 element("label", {class: "slider quiet", for: "block"}, "Block"), slider, reading);
}
