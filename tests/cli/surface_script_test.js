// node surface_script_test.js PAGE: runs the page's script in a stand-in for the
// DOM that holds the elements of the page's picture; fails where the script does
// not turn the picture, or does not turn it back to what the page shows.
const assert = require("assert");
const page = require("fs").readFileSync(process.argv[2], "utf8");

class Node {
  constructor(name, attributes = {}, text = "") {
    Object.assign(this, {name, attributes, text, children: [], style: {}});
    this.listeners = {};
  }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(event, listener) { this.listeners[event] = listener; }
}

const elements = [...page.match(/<g id="scene">([^]*?)<\/g>/)[1].matchAll(
    /<(polygon|polyline|circle|text) ([^>]*?)\/?>(?:<title>)?([^<]*)/g)]
    .map(([, name, attributes, text]) => new Node(name, Object.fromEntries(
        [...attributes.matchAll(/([\w-]+)="([^"]*)"/g)].map(m => m.slice(1))),
        text.trim()));
const scene = new Node("g");
scene.children = elements.slice();
const svg = scene.ownerSVGElement = new Node("svg");
const root = new Node("document");
const document = {
  getElementById: id => (assert.equal(id, "scene"), scene),
  addEventListener: (event, listener) => root.addEventListener(event, listener),
};

// Each element that is seen, in order, with the numbers of its place.
const numbers = a => (a.points || a.transform).match(/-?[\d.]+/g).map(Number);
const shown = () => scene.children
    .filter(node => node.attributes.display !== "none")
    .map(node => ({node, at: numbers(node.attributes)}));
const same = (a, b) => a.length === b.length && a.every((one, i) =>
    one.node === b[i].node && one.at.length === b[i].at.length &&
    one.at.every((x, j) => Math.abs(x - b[i].at[j]) <= 0.06));

const first = shown();
assert(first.length > 20);
assert(first.length < elements.length, "nothing is hidden");
new Function("document", page.match(/<!\[CDATA\[([^]*)\/\/\]\]>/)[1])(document);
assert(same(shown(), first), "moved before it is turned");

const drag = (movementX, movementY, buttons) =>
    svg.listeners.pointermove({movementX, movementY, buttons});
drag(40, 10, 0);
assert(same(shown(), first), "turned without a button");
drag(40, 10, 1);
assert(!same(shown(), first), "not turned");
svg.listeners.dblclick();
assert(same(shown(), first), "not turned back");
const press = key => root.listeners.keydown({key, preventDefault() {}});
press("ArrowLeft");
assert(!same(shown(), first), "not turned by a key");
press("ArrowRight");
assert(same(shown(), first), "keys do not cancel out");

// Half a turn shows the other walls and, with those, as many faces.
const faces = seen => seen.filter(one => one.node.name === "polygon");
drag(-360, 0, 1);
assert.equal(faces(shown()).length, faces(first).length);
assert.equal(faces(shown()).filter(one =>
    faces(first).some(other => other.node === one.node)).length,
    faces(first).length - 2);
drag(0, 10000, 1);
assert.equal(faces(shown()).length, faces(first).length);
assert.equal(scene.children.length, elements.length);
