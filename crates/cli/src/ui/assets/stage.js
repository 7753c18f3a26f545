// The stage: one server, or two, with the stops of a route on it and the legs of the batch between
// them. Where a stop stands follows from the hops; which switch devices share, from the links crossed.

import { svg } from './dom.js';

const SERVER = { width: 352, height: 312 };
const GAP = 36;
const MARGIN = 6;
const OUTSIDE = 62;
const RAM = { top: 30, height: 62 };
const CPU = { top: 124, height: 34 };
const SWITCH = { top: 190, height: 24 };
const DEVICE = { top: 250, height: 44 };
const USES = {
  application: 'host memory',
  'page-cache': 'page cache',
  bounce: 'bounce buffer',
  'socket-buffer': 'socket buffer',
};
const CPU_LINKS = ['host-bridge', 'socket', 'chip-to-chip'];

// Takes a stop apart: on which side it is, what it is, and a key that is the same for the same stop.
function stopOf(stop) {
  const there = stop.at === 'remote';
  const inner = there ? stop.stop : stop;
  const side = ['store', 'network'].includes(inner.at) ? 'outside' : there ? 'there' : 'here';
  return { side, inner, key: JSON.stringify(stop) };
}

function labelOf(inner) {
  if (inner.at === 'host') return USES[inner.use_] ?? inner.use_;
  if (inner.at === 'gpu') return `GPU ${inner.index}`;
  if (inner.at === 'peer') return `peer ${inner.address}`;
  if (inner.at === 'network') return 'the network';
  return inner.name;
}

const kindOf = (inner) => ({ nic: 'network adapter', drive: 'drive', gpu: 'GPU memory', peer: 'peer memory' })[inner.at];
const fits = (text, room) => (text.length <= room ? text : `${text.slice(0, room - 1)}…`);

// All stops of a route by side, in the order in which the batch comes to them.
function cast(hops) {
  const stops = new Map();
  for (const stop of hops.flatMap(({ from, to }) => [from, to])) {
    const known = stopOf(stop);
    if (!stops.has(known.key)) stops.set(known.key, known);
  }
  return [...stops.values()];
}

// Which devices a hop shows to be below one switch, and which below a switch at all.
function switches(hops) {
  const chains = new Map();
  const together = [];
  for (const { from, to, crosses } of hops) {
    const [a, b] = [stopOf(from), stopOf(to)];
    const links = crosses.filter(({ kind }) => kind === 'pcie').map(({ link }) => link);
    const isDevice = ({ inner }) => !['host', 'store', 'network'].includes(inner.at);
    if (isDevice(a) && b.inner.at === 'host') chains.set(a.key, links);
    else if (isDevice(b) && a.inner.at === 'host') chains.set(b.key, links.reverse());
    else if (isDevice(a) && isDevice(b) && a.side === b.side && links.length > 1) {
      const apart = crosses.some(({ kind }) => CPU_LINKS.includes(kind));
      if (!apart) together.push([a.key, b.key]);
      const half = Math.ceil(links.length / 2);
      if (apart) {
        chains.set(a.key, links.slice(0, half));
        chains.set(b.key, links.slice(half).reverse());
      }
    }
  }
  const share = (a, b) => together.some((pair) => pair.includes(a) && pair.includes(b))
    || (chains.get(a) ?? []).slice(1).some((link) => (chains.get(b) ?? []).includes(link));
  const below = (key) => (chains.get(key)?.length ?? 0) > 1 || together.some((pair) => pair.includes(key));
  return { share, below };
}

// Groups of devices below one switch each; a device without a switch is a group of its own.
function grouped(devices, { share, below }) {
  const groups = [];
  for (const device of devices) {
    const group = groups.find(({ members }) => members.some(({ key }) => share(key, device.key)));
    if (group) group.members.push(device);
    else groups.push({ members: [device], switched: below(device.key) });
  }
  return groups;
}

class Stage {
  constructor(hops, narrow) {
    this.hops = hops;
    this.narrow = narrow;
    this.spots = new Map();
    this.layer = svg('g');
    this.words = svg('g');
    this.cpus = new Map();
    const stops = cast(hops);
    const sides = ['here', 'there'].filter((side) => stops.some((stop) => stop.side === side));
    const outside = stops.filter(({ side }) => side === 'outside');
    const beside = sides.length > 1 && !narrow;
    this.width = beside ? 2 * SERVER.width + GAP : SERVER.width;
    this.height = (sides.length > 1 && narrow ? 2 * SERVER.height + GAP : SERVER.height + (sides.length > 1 ? GAP : 0))
      + (outside.length > 0 ? OUTSIDE : 0);
    const known = switches(hops);
    sides.forEach((side, index) => {
      const flip = index > 0 && narrow;
      this.server(side, stops.filter((stop) => stop.side === side), known, {
        x: beside ? index * (SERVER.width + GAP) : 0,
        y: flip ? SERVER.height + GAP : 0,
        flip,
      });
    });
    outside.forEach((stop, index) => {
      const width = SERVER.width / outside.length;
      const spot = { x: index * width + 8, y: SERVER.height + 14, width: width - 16, height: 36 };
      this.spot(stop, spot, fits(labelOf(stop.inner), Math.floor(width / 8)), null);
    });
  }

  // A server with its memory above, its CPUs, its switches, its devices below; or upside down.
  server(side, stops, known, { x, y, flip }) {
    const at = (top, height) => (flip ? y + SERVER.height - top - height : y + top);
    const box = { x, y, width: SERVER.width, height: SERVER.height };
    this.rect('server', box, 10);
    this.text(x + 12, at(8, 12) + 11, side === 'here' ? 'this server' : 'the other server', 'note left');
    const inside = { x: x + 12, width: SERVER.width - 24 };
    const ram = { ...inside, y: at(RAM.top, RAM.height), height: RAM.height };
    this.rect('ram', ram, 6);
    const cpu = { ...inside, y: at(CPU.top, CPU.height), height: CPU.height };
    this.cpu(side, cpu, ram);
    const memory = stops.filter(({ inner }) => inner.at === 'host');
    if (memory.length === 0) this.text(x + SERVER.width / 2, ram.y + 36, 'host RAM: not touched', 'note');
    memory.forEach((stop, index) => {
      const width = inside.width / memory.length;
      const spot = { x: inside.x + index * width + 5, y: ram.y + 7, width: width - 10, height: RAM.height - 14 };
      this.spot(stop, spot, labelOf(stop.inner), null, { cpu });
    });
    const groups = grouped(stops.filter(({ inner }) => inner.at !== 'host'), known);
    const count = groups.reduce((sum, { members }) => sum + members.length, 0);
    const pitch = inside.width / Math.max(count, 1);
    let place = 0;
    for (const { members, switched } of groups) {
      const left = inside.x + place * pitch;
      const bar = { x: left + 8, y: at(SWITCH.top, SWITCH.height), width: members.length * pitch - 16, height: SWITCH.height };
      if (switched) {
        this.link(bar.x + bar.width / 2, cpu, bar);
        this.rect('part', bar, 5);
        this.text(bar.x + bar.width / 2, bar.y + 16, 'PCIe switch', 'note');
      }
      members.forEach((stop, index) => {
        const width = Math.min(pitch - 12, 150);
        const middle = left + (index + 0.5) * pitch;
        const spot = { x: middle - width / 2, y: at(DEVICE.top, DEVICE.height), width, height: DEVICE.height };
        this.link(middle, switched ? bar : cpu, spot);
        this.spot(stop, spot, fits(labelOf(stop.inner), Math.floor(width / 8)), kindOf(stop.inner),
          { cpu, bar: switched ? bar : null, flip });
      });
      place += members.length;
    }
  }

  // The CPU; two of them, and the link between, where a hop crosses it.
  cpu(side, box, ram) {
    const crossed = this.hops.some(({ from, crosses }) => stopOf(from).side === side && crosses.some(({ kind }) => kind === 'socket'));
    const width = crossed ? (box.width - 44) / 2 : box.width;
    const halves = crossed ? [box.x, box.x + box.width - width] : [box.x];
    const rects = halves.map((x) => {
      this.link(x + width / 2, ram, box);
      return this.rect('cpu', { ...box, x, width }, 6);
    });
    halves.forEach((x) => this.text(x + width / 2, box.y + 21, crossed ? 'CPU' : 'CPU, root complex', 'name'));
    if (crossed) this.text(box.x + box.width / 2, box.y - 8, 'socket to socket', 'note');
    this.cpus.set(side, rects);
  }

  rect(name, { x, y, width, height }, round) {
    const rect = svg('rect', { class: name, x, y, width, height, rx: round });
    this.layer.append(rect);
    return rect;
  }

  text(x, y, words, name = '') {
    this.words.append(svg('text', { x, y, class: name }, words));
  }

  link(x, one, other) {
    const [above, below] = one.y < other.y ? [one, other] : [other, one];
    this.layer.append(svg('path', { class: 'link', d: `M${x} ${above.y + above.height}V${below.y}` }));
  }

  spot(stop, box, label, kind, around = {}) {
    const rect = this.rect('part', box, 6);
    const [x, middle] = [box.x + box.width / 2, box.y + box.height / 2];
    const words = kind || label.length * 7.5 < box.width ? [label] : label.split(' ');
    const lines = kind ? [label, kind] : words;
    lines.forEach((line, index) => this.text(x, middle + 5 + (index - (lines.length - 1) / 2) * 16, line,
      index === 0 || !kind ? 'name' : 'note'));
    this.spots.set(stop.key, { ...stop, box, rect, x, y: middle, ...around });
  }

  // The corners of a hop's leg, from the edge of one box to that of another.
  leg({ from, to, crosses }) {
    const [a, b] = [this.spots.get(stopOf(from).key), this.spots.get(stopOf(to).key)];
    const middle = ({ y, height }) => y + height / 2;
    const facing = ({ box }, y) => (y < box.y ? box.y : box.y + box.height);
    const by = (turn, left = a.x, right = b.x) => [[left, facing(a, turn)], [left, turn], [right, turn], [right, facing(b, turn)]];
    if (a.side !== b.side) return by(this.between(a, b));
    if (a === b) return by(middle(a.cpu ?? a.box), a.x - 14, a.x + 14);
    if (crosses.some(({ kind }) => ['nv-link', 'xgmi'].includes(kind))) return by(a.flip ? a.box.y - 9 : a.box.y + a.box.height + 9);
    const apart = crosses.some(({ kind }) => CPU_LINKS.includes(kind));
    const host = [a, b].some(({ inner }) => inner.at === 'host');
    const shared = a.bar && a.bar === b.bar && !apart && !host;
    return by(middle(shared ? a.bar : a.cpu));
  }

  // Where the cable between two sides runs.
  between(a, b) {
    const outside = [a, b].find(({ side }) => side === 'outside');
    if (outside) return outside.box.y - 8;
    return this.narrow ? SERVER.height + GAP / 2 : SERVER.height + 16;
  }
}

const lengths = (points) => points.slice(1).map(([x, y], index) =>
  Math.hypot(x - points[index][0], y - points[index][1]));

// The point at this part of a line of corners.
function along(points, part) {
  const parts = lengths(points);
  let left = part * parts.reduce((sum, length) => sum + length, 0);
  for (const [index, length] of parts.entries()) {
    if (left <= length && length > 0) {
      const [[x1, y1], [x2, y2]] = [points[index], points[index + 1]];
      return [x1 + ((x2 - x1) * left) / length, y1 + ((y2 - y1) * left) / length];
    }
    left -= length;
  }
  return points.at(-1);
}

// Draws a way onto an element; what is returned shows how far the batch has come.
export function stage(element, { hops, class: straightness, title }, narrow) {
  const set = new Stage(hops, narrow);
  const legs = hops.map((hop) => set.leg(hop));
  const drawn = legs.map((points) => svg('path', { class: 'leg', d: `M${points.map((p) => p.join(' ')).join('L')}` }));
  const batch = svg('circle', { class: 'batch', r: 9 });
  element.replaceChildren(svg('svg', {
    viewBox: `${-MARGIN} ${-MARGIN} ${set.width + 2 * MARGIN} ${set.height + 2 * MARGIN}`,
    role: 'img',
    'aria-label': title,
    class: straightness ?? '',
  }, set.layer, ...drawn, set.words, batch));
  element.firstChild.style.maxWidth = `${set.width * 1.3}px`;
  return (done, part) => {
    const moving = hops[done];
    const [x, y] = moving ? along(legs[done], part) : legs.at(-1).at(-1);
    batch.setAttribute('cx', x);
    batch.setAttribute('cy', y);
    drawn.forEach((leg, index) => leg.classList.toggle('done', index < done));
    const here = moving?.from ?? hops.at(-1).to;
    for (const [key, { rect }] of set.spots) rect.classList.toggle('at', key === stopOf(here).key);
    const busy = part > 0 && moving?.carrier.by === 'cpu' ? stopOf(moving.from).side : '';
    for (const [side, rects] of set.cpus) rects[0].classList.toggle('busy', side === busy);
  };
}
