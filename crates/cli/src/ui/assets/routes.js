// Routes: a machine, a journey, its scenes, and the batch on its way.

import { ask, isGivenUp, latest, send } from './ask.js';
import { byId, drawn, el, options, table } from './dom.js';
import { drops } from './drop.js';
import { write } from './link.js';
import { offered } from './plan.js';
import { Player } from './player.js';
import { stage } from './stage.js';

const COUNTERS = ['copies', 'cpu_touches', 'pcie_hops', 'host_ram_passes'];
const NARROW = matchMedia('(max-width: 640px)');
const TILE = 'svg{display:block}g.is-here rect.tile{stroke:var(--accent);stroke-width:4}';
const askWays = latest();

let choices = [];
let machine;
let chosen = {};
let plan;
let way;
let move = () => {};
const player = new Player((done, part) => move(done, part), moved);

export function start(about) {
  choices = about.machines;
  offer();
  byId('machine').addEventListener('change', (event) => choose({ machine: event.target.value }));
  byId('machine-file').addEventListener('change', (event) => take([...event.target.files]));
  drops(document.querySelector('[data-drop=machine]'), take);
  byId('journey').addEventListener('change', (event) => {
    const journey = machine.journeys.find(({ id }) => id === event.target.value);
    if (journey) scene(journey.scenes[0]);
  });
  byId('places-form').addEventListener('submit', (event) => {
    event.preventDefault();
    scene({ from: byId('place-from').value, to: byId('place-to').value });
  });
  byId('play').addEventListener('click', () => player.toggle());
  byId('step').addEventListener('click', () => player.step(1));
  byId('back').addEventListener('click', () => player.step(-1));
  byId('reset').addEventListener('click', () => player.step(-player.hops));
  NARROW.addEventListener('change', () => way && put(player.done));
}

function offer() {
  options(byId('machine'), choices.map(({ id, name, missing }) =>
    [id, missing ? `${name} (nothing to draw)` : name, Boolean(missing) && id !== 'here']));
}

// The state of an address, or what the machine at hand offers first.
export function open(state) {
  const wanted = Object.fromEntries(state);
  const same = machine && Object.keys(wanted).length === 0;
  if (same) return keep();
  return choose(wanted);
}

async function take(files) {
  const [file] = files;
  if (!file) return;
  said(`Reading ${file.name}…`);
  try {
    // A header holds no other characters, and the name is only for the reader.
    const name = file.name.replace(/[^ -~]/g, '_');
    const found = await send('machine', file, { 'x-crowfly-name': name });
    choices = [choices[0], { id: found.id, name: found.name }, ...choices.slice(1).filter(({ id }) => id !== found.id)];
    offer();
    offered(choices);
    await choose({ machine: found.id });
  } catch (error) {
    said(`${file.name}: ${error.message}`);
  }
}

const said = (text) => {
  byId('machine-said').textContent = text;
};

async function choose(wanted) {
  const id = wanted.machine ?? 'here';
  byId('machine').value = id;
  try {
    if (machine?.id !== id) await load(id);
  } catch (error) {
    return said(error.message);
  }
  const scenes = machine.journeys.flatMap(({ scenes: all }) => all);
  const named = wanted.from && wanted.to ? wanted : scenes[0];
  if (!named) {
    byId('route').hidden = true;
    return said(`${machine.title}. No journey to play: no adapter and no drive was seen.`);
  }
  return scene(named, Number(wanted.step ?? 0));
}

async function load(id) {
  machine = await ask('machine', [['machine', id]]);
  said(`${machine.title}. ${machine.host}`);
  drawn(byId('map'), machine.picture, TILE);
  byId('oddities').replaceChildren(...machine.oddities.map(({ at, what }) => el('li', {}, `${at}: ${what}`)));
  byId('places').replaceChildren(...machine.places.map((value) => el('option', { value })));
  options(byId('journey'), [['', 'other places', true], ...machine.journeys.map(({ id: value, title }) => [value, title])]);
}

async function scene({ from, to, way: name }, step = 0) {
  player.pause();
  try {
    plan = await askWays('route', [['machine', machine.id], ['from', from], ['to', to]]);
  } catch (error) {
    if (isGivenUp(error)) return;
    byId('route-error').textContent = error.message;
    byId('route').hidden = true;
    return;
  }
  byId('route-error').textContent = '';
  byId('route').hidden = false;
  byId('place-from').value = from;
  byId('place-to').value = to;
  byId('route-command').textContent = plan.command;
  chosen = { machine: machine.id, from, to };
  const ways = plan.document.ways;
  const named = ways.findIndex((one) => one.name === name);
  pick(Math.max(named, 0), step);
  if (name && named < 0) byId('route-error').textContent = `This machine has no way called ${name} from ${from} to ${to}.`;
}

function pick(index, step) {
  const ways = plan.document.ways;
  way = ways[index] && { ...ways[index], beats: plan.played[index] };
  chosen.way = way?.name;
  sceneButtons();
  waysTable(ways, index);
  obstacles();
  hopList();
  put(step);
}

function sceneButtons() {
  const isIt = (one) => one.from === chosen.from && one.to === chosen.to;
  const journey = machine.journeys.find(({ scenes }) => scenes.some((one) => isIt(one) && one.way === chosen.way))
    ?? machine.journeys.find(({ scenes }) => scenes.some(isIt));
  byId('journey').value = journey?.id ?? '';
  byId('scenes').replaceChildren(...(journey?.scenes ?? []).map((one) => {
    const pressed = isIt(one) && one.way === chosen.way;
    const button = el('button', { type: 'button', 'aria-pressed': String(pressed) }, one.title);
    button.addEventListener('click', async () => {
      await scene(one);
      byId('scenes').querySelector('[aria-pressed=true]')?.focus();
    });
    return button;
  }));
}

function waysTable(ways, index) {
  const columns = ['way', 'standing', 'class', 'copies', 'CPU touches', 'PCIe hops', 'RAM passes', 'ceiling']
    .map((title, at) => ({ title, number: at > 2 && at < 7 }));
  const rows = ways.map((one, at) => {
    const button = el('button', { type: 'button', 'aria-pressed': String(at === index) }, one.name);
    button.addEventListener('click', () => {
      pick(at, 0);
      byId('ways').querySelector('[aria-pressed=true]')?.focus();
    });
    const binding = one.ceiling && plan.played[at][one.ceiling.hop].capacity;
    return [button, one.standing, one.class ?? '–', ...COUNTERS.map((name) => String(one.counters?.[name] ?? '–')), binding ?? '–'];
  });
  byId('ways').replaceChildren(...table(columns, rows).firstChild.children);
}

function fixes(steps) {
  return el('ol', {}, ...steps.map(({ what, command, check }) => el('li', {}, what,
    command && el('pre', {}, command),
    check && el('span', { class: 'soft' }, 'check'), check && el('pre', {}, check))));
}

function obstacles() {
  const all = way?.obstacles ?? [];
  const none = el('p', {}, way ? `Nothing is known to stand in the way of ${way.name}.` : '');
  byId('obstacles').replaceChildren(...(all.length === 0 ? [none] : all.map((one) => el('article',
    { class: `finding ${one.effect === 'blocks' ? 'is-bad' : 'is-warn'}` },
    el('h3', {}, `${one.code} `, el('span', { class: 'soft' }, `${one.effect}, ${one.confidence}`)),
    el('p', {}, one.summary),
    one.evidence.length > 0 && el('h4', {}, 'Seen'),
    ...one.evidence.map(({ at, shows }) => el('div', { class: 'quote' }, el('span', { class: 'at' }, at), el('pre', {}, shows))),
    one.fix.length > 0 && el('h4', {}, 'Fix'),
    one.fix.length > 0 && fixes(one.fix)))));
}

function hopList() {
  byId('hops').replaceChildren(...(way?.beats ?? []).map(({ from, to, by, over, capacity }) => el('li', {},
    `${from} → ${to}: ${by}${capacity ? `, ${capacity}` : ''}`,
    over.length > 0 && el('div', { class: 'soft' }, `over ${over.join(', ')}`))));
}

// Sets the stage for the way, with the batch after so many hops.
function put(step) {
  const hops = way?.hops ?? [];
  byId('stage').hidden = hops.length === 0;
  const title = way ? `${way.name}, ${way.class ?? 'which needs what is not there'}: ${way.beats.map(({ from, to }) => `${from} to ${to}`).join(', ')}` : '';
  move = hops.length > 0 ? stage(byId('stage'), { ...way, title }, NARROW.matches) : () => {};
  player.load(hops.length, step);
}

function moved() {
  if (!way) return;
  const { done, hops, playing } = player;
  const beats = way.beats;
  const before = done > 0 ? beats[done - 1].counters : null;
  for (const name of COUNTERS) byId(`count-${name}`).textContent = String(before?.[name] ?? 0);
  [...byId('hops').children].forEach((item, index) => {
    if (index === done - 1) item.setAttribute('aria-current', 'step');
    else item.removeAttribute('aria-current');
  });
  const names = (beat) => `${beat.from} → ${beat.to}: ${beat.by}`;
  const arrived = hops > 0 && done === hops ? 'Arrived. ' : '';
  byId('now').textContent = hops === 0
    ? `${way.name} cannot be played: a device that it needs is not there.`
    : done === 0 ? `${hops} ${hops === 1 ? 'hop' : 'hops'} by ${way.name}. At the start: ${beats[0].from}.`
      : `${arrived}Hop ${done} of ${hops}. ${names(beats[done - 1])}.`;
  byId('play').textContent = playing ? 'Pause' : 'Play';
  byId('play').disabled = hops === 0;
  byId('back').disabled = done === 0;
  byId('reset').disabled = done === 0;
  byId('step').disabled = done === hops;
  highlight(done > 0 ? way.hops[done - 1].to : way.hops[0]?.from);
  keep();
}

// The device on the machine's own drawing.
function highlight(stop) {
  const inner = stop?.at === 'remote' ? null : stop;
  const name = inner?.at === 'gpu' ? `gpu${inner.index}` : inner?.name;
  for (const title of byId('map').shadowRoot?.querySelectorAll('g > title') ?? []) {
    title.parentNode.classList.toggle('is-here', Boolean(name) && title.textContent.startsWith(`${name}:`));
  }
}

function keep() {
  if (byId('routes').hidden || !chosen.from) return;
  const { machine: id, from, to, way: name } = chosen;
  const step = player.done > 0 ? [['step', player.done]] : [];
  write('routes', [['machine', id], ['from', from], ['to', to], ...(name ? [['way', name]] : []), ...step]);
}
