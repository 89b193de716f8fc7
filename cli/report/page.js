"use strict";
// What the pages share: text of numbers, elements, tables and charts. Text from files goes
// into text nodes only, never into markup.

const report = JSON.parse(document.getElementById("data").textContent);

// As acplan's tables show sizes: the largest binary unit that leaves at least 1.
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let size = bytes;
  while (Math.abs(size) >= 1024 && unit + 1 < units.length) {
    size /= 1024;
    ++unit;
  }
  return (unit ? size.toFixed(2) : String(bytes)) + " " + units[unit];
}

const countText = n => n.toLocaleString("en-US", {maximumFractionDigits: 0});
const msText = ms => (Math.abs(ms) < 0.01 && ms !== 0 ? ms.toPrecision(2) : ms.toFixed(2)) + " ms";
// Never rounded down: a gap must not look smaller than it is.
const percentText = share => (Math.ceil(share * 1e4 - 1e-9) / 100).toFixed(2) + "%";
const gib = bytes => bytes / 2 ** 30;

// element("td", {class: "name"}, "text", child...): attributes, and functions as listeners.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

function section(id, title, ...children) {
  return element("section", {"aria-labelledby": id + "-title", id},
                 element("h2", {id: id + "-title"}, title), ...children);
}

// A name that a line may end in after each of its dots.
const dotted = name => element("span", {}, ...name.split(/(?<=\.)/).flatMap(part => [part, element("wbr", {})]));

// columns: [{title, text?, name?, value(row), show?(value, row)}]. A cell that `show` makes is
// text or an element.
function tableOf(caption, columns, rows) {
  const cellOf = (column, row) => {
    const value = column.value(row);
    const shown = column.show ? column.show(value, row) : value;
    if (shown === null || shown === undefined) return "";
    return column.name && typeof shown === "string" ? dotted(shown) : shown;
  };
  const classOf = column => (column.text ? (column.name ? "text name" : "text") : null);
  const body = element("tbody", {});
  const fill = () => body.replaceChildren(...rows.map(row => element(
      "tr", {}, ...columns.map((column, place) => element(
          place ? "td" : "th", {class: classOf(column), scope: place ? null : "row"},
          cellOf(column, row))))));
  const heads = columns.map(column => element("th", {scope: "col", class: classOf(column)}, column.title));
  fill();
  return element("div", {class: "wide", tabindex: "0", role: "region", "aria-label": caption},
                 element("table", {}, element("caption", {class: "quiet"}, caption),
                         element("thead", {}, element("tr", {}, ...heads)), body));
}

// As tableOf, with a button in each heading that sorts, a field that searches, and no more
// rows at once than a browser lays out swiftly.
function searchableTable(caption, columns, rows, words) {
  const step = 50;
  let shown = step, sorted = -1, ascending = false, needle = "";
  const box = element("div", {});
  const count = element("p", {class: "quiet", role: "status"});
  const more = element("button", {type: "button", click: () => { shown += 10 * step; draw(); }}, "Show more");
  const search = element("input", {type: "search", input: event => {
    needle = event.target.value.toLowerCase();
    shown = step;
    draw();
  }});
  function draw() {
    let found = needle ? rows.filter(row => words(row).toLowerCase().includes(needle)) : rows.slice();
    if (sorted >= 0) {
      const value = columns[sorted].value;
      const sign = ascending ? 1 : -1;
      found.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (typeof x === "string") return sign * x.localeCompare(y);
        return sign * ((x === null ? -1 : x) - (y === null ? -1 : y));
      });
    }
    const heads = columns.map((column, place) => ({...column, title: element("button", {type: "button", click: () => {
      ascending = sorted === place ? !ascending : Boolean(column.text);
      sorted = place;
      draw();
      box.querySelectorAll("th button")[place].focus();
    }}, column.title)}));
    const table = tableOf(caption, heads, found.slice(0, shown));
    table.querySelectorAll("thead th").forEach((head, place) => {
      if (place === sorted) head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    });
    box.replaceChildren(table);
    count.textContent = `${countText(Math.min(shown, found.length))} of ${countText(found.length)} rows`;
    more.hidden = found.length <= shown;
  }
  draw();
  return element("div", {}, element("div", {class: "controls"},
                                    element("label", {}, "Search", search)), count, box, more);
}

function selectOf(label, names, chosen, change) {
  const select = element("select", {change: event => change(Number(event.target.value))});
  names.forEach((name, place) => select.append(
      element("option", {value: place, selected: place === chosen}, name)));
  return element("label", {}, label, select);
}

function legendOf(entries) {
  return element("ul", {class: "legend"}, ...entries.map(([name, color, line]) => element(
      "li", {}, element("i", {class: line === true ? "line" : line || null, style: `color: var(--${color})`}), name)));
}

// The same in the chart itself, for what is saved of it.
const legendSpec = (channel, scale, width) => (
    {[channel]: scale, orient: "top", direction: "horizontal", columns: Math.max(1, Math.floor(width / 190)),
     symbolType: channel === "fill" ? "square" : "stroke", symbolStrokeWidth: channel === "fill" ? 0 : 2,
     labelColor: "var(--text)", labelFontSize: 12, labelLimit: 300});

// Axes as everywhere on the page. Colours are variables of the style sheet, so that a
// chart follows the scheme and what is printed.
const chartConfig = {
  font: "system-ui, 'DejaVu Sans', sans-serif",
  aria: true,
  axis: {
    domainColor: "var(--quiet)", tickColor: "var(--quiet)", gridColor: "var(--line)",
    labelColor: "var(--text)", titleColor: "var(--text)", labelFontSize: 12, titleFontSize: 12,
    titleFontWeight: "normal", labelOverlap: true, titlePadding: 8,
  },
  axisBottom: {labelFlush: true},
};

const charts = [];

// A chart in a figure: `spec(width)` is its Vega specification, `saved(marks)` in it what is
// other in a file. Drawn again where the width changes or redraw() is called.
function chartOf(label, spec, onView) {
  const place = element("div", {class: "chart"});
  const chart = {
    node: element("figure", {}, place, element("div", {class: "controls"}, element(
        "button", {type: "button", click: () => saveSvg(chart, label)}, "Save as SVG"))),
    spec(width, isSaved) {
      const {saved, ...drawn} = spec(width);
      return {$schema: "https://vega.github.io/schema/vega/v5.json", description: label,
              autosize: {type: "fit", contains: "padding"}, padding: 4, background: null,
              ...drawn, ...(isSaved && saved ? saved(drawn.marks) : {}), width, config: chartConfig};
    },
    redraw() {
      const width = Math.max(240, Math.floor(place.clientWidth));
      if (chart.view) chart.view.finalize();
      place.replaceChildren();
      chart.view = new vega.View(vega.parse(chart.spec(width, false)), {renderer: "svg", container: place, hover: false});
      chart.view.run();
      chart.width = place.clientWidth;
      if (onView) onView(chart.view);
    },
    resize() {
      if (place.clientWidth !== chart.width) chart.redraw();
    },
  };
  charts.push(chart);
  return chart;
}

// With a legend, and the colours that the page has now: outside of it are no variables.
async function saveSvg(chart, label) {
  const style = getComputedStyle(document.documentElement);
  const view = new vega.View(vega.parse(chart.spec(Math.max(chart.width, 480), true)), {renderer: "none"});
  const drawn = (await view.toSVG()).replace("<svg ", '<svg style="background: var(--background)" ');
  const round = path => path.replace(/\d+\.\d{3,}/g, number => Number(number).toFixed(2));
  const svg = drawn.replace(/ d="[^"]*"/g, round).replace(
      /var\((--[a-z0-9-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  const link = element("a", {
    href: URL.createObjectURL(new Blob([svg], {type: "image/svg+xml"})),
    download: label.toLowerCase().replace(/[^a-z0-9]+/g, "-") + ".svg",
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => charts.forEach(chart => chart.resize()), 120);
});

// Puts the page together: sections first, since charts are as wide as their place.
function showPage(title, facts, sections) {
  document.querySelector("h1").textContent = title;
  document.getElementById("facts").textContent = facts;
  document.querySelector("main").replaceChildren(...sections.filter(Boolean));
  charts.forEach(chart => chart.redraw());
  document.documentElement.dataset.ready = "yes";
}

// Some sections and nothing else, in a frame that takes their height: a notebook's output.
function showParts(sections) {
  document.querySelector("header").hidden = true;
  document.body.className = "parts";
  showPage(document.title, "", sections);
  const frame = window.frameElement;
  if (!frame) return;
  const fit = () => { frame.style.height = Math.ceil(document.body.getBoundingClientRect().height) + "px"; };
  new ResizeObserver(fit).observe(document.body);
  fit();
}
