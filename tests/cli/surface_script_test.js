// node surface_script_test.js PAGE: runs the page's script in a stand-in for
// the DOM; fails where it draws something else than the page shows, or does not
// turn it.
const assert = require("assert");
const page = require("fs").readFileSync(process.argv[2], "utf8");

class Node {
  constructor(name) {
    Object.assign(this, {name, attributes: {}, children: [], style: {}});
    this.listeners = {};
  }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  appendChild(child) { this.children.push(child); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(event, listener) { this.listeners[event] = listener; }
}

const scene = new Node("g");
const svg = scene.ownerSVGElement = new Node("svg");
const root = new Node("document");
const document = {
  getElementById: id => (assert.equal(id, "scene"), scene),
  createElementNS: (space, name) => new Node(name),
  addEventListener: (event, listener) => root.addEventListener(event, listener),
};
new Function("document", page.match(/<!\[CDATA\[([^]*)\/\/\]\]>/)[1])(document);

// Name, numbers of the place, colour and text of each element, in order.
const numbers = a => ["points", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy"]
    .filter(key => key in a)
    .flatMap(key => a[key].split(/[ ,]/).map(Number));
const described = (name, a, text) => ({name, at: numbers(a),
  color: a.fill || a.stroke, text: text || ""});
const drawn = () => scene.children.map(node => described(node.name,
    node.attributes, node.textContent ||
    (node.children[0] && node.children[0].textContent)));
const shown = [...page.match(/<g id="scene">([^]*?)<\/g>/)[1].matchAll(
    /<(polygon|line|circle|text) ([^>]*?)\/?>(?:<title>)?([^<]*)/g)]
    .map(([, name, attributes, text]) => described(name, Object.fromEntries(
        [...attributes.matchAll(/([\w-]+)="([^"]*)"/g)].map(m => m.slice(1))),
        text.trim()));
const same = (a, b) => a.length === b.length && a.every((one, i) =>
    one.name === b[i].name && one.color === b[i].color &&
    one.text === b[i].text && one.at.length === b[i].at.length &&
    one.at.every((x, j) => Math.abs(x - b[i].at[j]) <= 0.06));

const first = drawn();
assert(shown.length > 20);
assert(same(first, shown), "the script draws something else");

const drag = (movementX, movementY, buttons) =>
    svg.listeners.pointermove({movementX, movementY, buttons});
drag(40, 10, 0);
assert(same(drawn(), first), "turned without a button");
drag(40, 10, 1);
assert(!same(drawn(), first), "not turned");
svg.listeners.dblclick();
assert(same(drawn(), first), "not turned back");
const press = key => root.listeners.keydown({key, preventDefault() {}});
press("ArrowLeft");
assert(!same(drawn(), first), "not turned by a key");
press("ArrowRight");
assert(same(drawn(), first), "keys do not cancel out");
drag(0, 10000, 1);
const faces = drawn().filter(item => item.name === "polygon");
assert.equal(faces.length, shown.filter(i => i.name === "polygon").length);
