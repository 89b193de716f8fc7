// The report of batches of several lengths: docs/reports.md. The chart of a run is that of a
// step's page (device.js).

const most = Math.max(1, ...onDevice.flatMap(run => run.device.runs.map(drawn => drawn.reserved_bytes)));
const unit = most >= 2 ** 30 ? {name: "GiB", bytes: 2 ** 30} : {name: "MiB", bytes: 2 ** 20};
const isPlanned = report.lengths.some(row => row.up_to !== undefined);

function lengthsTable() {
  const ofTraining = show => (value, row) => (row.batches ? show(value) : "");
  return tableOf("The batches of each length. A plan is named by the longest length that it is for; live bytes are those of a batch's step, at most.", [
    {title: "length", value: row => row.length, show: countText},
    {title: "batches", value: row => row.batches, show: countText},
    {title: "evaluations", value: row => row.evaluations, show: countText},
    ...(isPlanned ? [
      {title: "plan up to", value: row => row.up_to, show: ofTraining(countText)},
      {title: "units", value: row => row.units, show: ofTraining(countText)},
    ] : []),
    {title: "live bytes", value: row => row.live_bytes, show: ofTraining(bytesText)},
    {title: "recomputed", value: row => row.recompute_ms, show: ofTraining(msText)},
  ], report.lengths);
}

function lengthsFacts() {
  const device = onDevice[0].device.device_bytes;
  return [`${countText(report.batches)} batches of ${countText(report.lengths.length)} lengths`,
          device ? `device ${bytesText(device)}` : "no limit of the device", `PyTorch ${report.torch_version}`,
          ...(isPlanned ? [`a batch recomputes ${msText(report.recompute_ms)} on average`] : []),
          ...(report.bound_ms === undefined ? [] : [`bound ${msText(report.bound_ms)}`])].join(" · ");
}

showPage(document.title, lengthsFacts(), [
  section("lengths", "Lengths", lengthsTable()),
  deviceSection("The training run on PyTorch's allocator: the model is put on the device, then the batches follow in their order."),
]);
