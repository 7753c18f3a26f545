// Plan: the form is a command line of `crowfly plan`; the answer is what that command answers.

import { isGivenUp, latest, query } from './ask.js';
import { chart } from './bars.js';
import { byId, drawn, el, options, sheet } from './dom.js';
import { write } from './link.js';

const WAIT_MS = 150;
const FIRST = { server: 'dgx-h100', servers: '8', model: '70b' };
const USUAL = {
  ...FIRST, sharding: 'ddp', tensor: '1', pipeline: '1', expert: '1', 'tokens-per-gpu': '16384',
  oversubscription: '1', data: 'text',
};
const CLUSTER = ['machine', 'server', 'servers', 'nic-gbps', 'memory-gbs', 'pcie-gen', 'oversubscription'];
const MODEL = ['model', 'params'];
const SPREAD = [...MODEL, 'sharding', 'tensor', 'pipeline', 'expert', 'tokens-per-gpu', 'recompute'];
const STORE = ['storage', 'storage-tib'];
const ASKED = {
  sweep: [...CLUSTER, ...SPREAD],
  checkpoint: [...CLUSTER, ...MODEL, ...STORE],
  interval: [...MODEL, ...STORE],
  loading: [...CLUSTER, ...SPREAD, ...STORE, 'data'],
  fabric: CLUSTER,
};
const CURVE = 'svg{display:block;width:100%;min-width:560px;height:auto}';
const MACHINE = 'machine:';

const form = () => byId('plan-form');
const field = (name) => form().elements.namedItem(name);
const asks = new Map(['plan', ...Object.keys(ASKED)].map((name) => [name, latest()]));
let servers = [];
let gpusPerServer = 8;
let timer;
// What a link says that no field of the form can hold.
let unread = '';

export function start(about) {
  const unsure = ({ id, verified }) => [id, verified ? id : `${id} (unverified)`];
  servers = about.servers.map(unsure);
  offered(about.machines);
  options(field('model'), about.models.map(unsure));
  options(field('storage'), [['', 'one of each class'], ...about.storage.map(unsure)]);
  options(field('nic-gbps'), [['', 'of the server'], ...about.adapters.map((gbps) => [String(gbps), String(gbps)])]);
  options(field('pcie-gen'), [['', 'of the server'], ...[3, 4, 5, 6, 7].map((gen) => [String(gen), `Gen${gen}`])]);
  options(field('sharding'), about.sharding.map((word) => [word, word]));
  form().addEventListener('submit', (event) => event.preventDefault());
  form().addEventListener('input', changed);
  for (const details of document.querySelectorAll('#plan details[data-question]')) {
    details.addEventListener('toggle', () => details.open && more(details));
  }
  byId('copy-link').addEventListener('click', copy);
}

// The servers to choose from: machines that were looked at, and those of the catalogue.
export function offered(machines) {
  const chosen = field('server').value;
  const seen = machines.filter(({ id, missing }) => !missing && !id.startsWith('server:'));
  options(field('server'), [...seen.map(({ id, name }) => [`${MACHINE}${id}`, name]), ...servers]);
  field('server').value = chosen || FIRST.server;
}

function changed({ target }) {
  unread = '';
  const slider = byId('servers-slider');
  if (target === slider) field('servers').value = String(2 ** Number(slider.value));
  if (target.name === 'model') field('params').value = '';
  clearTimeout(timer);
  timer = setTimeout(answer, WAIT_MS);
}

// Fills the form from an address, and answers.
export function open(state) {
  unread = '';
  const unknown = [...state.keys()].find((name) => name !== 'machine' && !field(name));
  if (unknown) unread = `This link asks for ${unknown}, which the page does not know.`;
  for (const control of form().elements) {
    if (!control.name) continue;
    const wanted = state.get(control.name) ?? USUAL[control.name] ?? '';
    if (control.type === 'checkbox') control.checked = state.has(control.name);
    else put(control, wanted);
  }
  if (state.has('machine')) put(field('server'), `${MACHINE}${state.get('machine')}`);
  if (state.has('params')) field('model').value = FIRST.model;
  return answer();
}

// A choice that is not offered is asked all the same, so that the answer says what is wrong with it.
function put(control, wanted) {
  control.value = wanted;
  if (control.value === wanted) return;
  if (control instanceof HTMLSelectElement) {
    control.add(new Option(wanted, wanted));
    control.value = wanted;
  } else {
    unread = `This link gives ${control.name} as ${wanted}, which is no number.`;
  }
}

// What the form says, without what is usual and was not asked for.
function given() {
  const pairs = [];
  for (const control of form().elements) {
    const { name, value } = control;
    if (!name || control.disabled) continue;
    if (control.type === 'checkbox') {
      if (control.checked) pairs.push([name, '']);
    } else if (name === 'server' && value.startsWith(MACHINE)) {
      pairs.push(['machine', value.slice(MACHINE.length)]);
    } else if (value !== '' && (name in FIRST || value !== USUAL[name])) {
      pairs.push([name, value]);
    }
  }
  const sized = pairs.some(([name]) => name === 'params');
  return pairs.filter(([name]) => !(sized && name === 'model'));
}

const only = (names) => given().filter(([name]) => names.includes(name));

// Shows an answer or says why there is none; an answer that came too late is nobody's.
async function show(name, path, pairs, error, into, fill) {
  try {
    const found = await asks.get(name)(path, pairs);
    error.textContent = '';
    into.hidden = false;
    fill(found);
  } catch (failed) {
    if (isGivenUp(failed)) return;
    error.textContent = failed.message;
    into.hidden = true;
  }
}

async function answer() {
  if (unread) {
    byId('plan-error').textContent = unread;
    byId('plan-answer').hidden = true;
    return;
  }
  const count = Number(field('servers').value);
  const slider = byId('servers-slider');
  slider.value = String(Math.round(Math.log2(Math.max(count, 1))));
  slider.setAttribute('aria-valuetext', `${count} servers, ${count * gpusPerServer} GPUs`);
  if (!byId('plan').hidden) write('plan', given());
  const asked = only(ASKED.sweep);
  for (const kind of ['json', 'csv', 'markdown', 'svg']) {
    byId(`export-${kind}`).href = `/api/plan/export?${query([['form', kind], ...asked])}`;
  }
  const details = [...document.querySelectorAll('#plan details[data-question][open]')];
  await Promise.all([
    show('plan', 'plan', asked, byId('plan-error'), byId('plan-answer'), fill),
    show('checkpoint', 'plan', [['question', 'checkpoint'], ...only(ASKED.checkpoint)],
      byId('checkpoint-error'), byId('checkpoint'), ({ sheet: found }) => {
        byId('checkpoint').replaceChildren(el('p', {}, found.verdict),
          el('div', { class: 'bars' }, ...found.charts.map(chart)), ...sheet(found));
      }),
    ...details.map(more),
  ]);
}

function fill({ command, document: found, sheet: told, picture }) {
  gpusPerServer = found.cluster.server.gpus;
  byId('verdict').textContent = told.verdict;
  byId('plan-bars').replaceChildren(...told.charts.map(chart));
  byId('plan-tables').replaceChildren(...sheet(told));
  drawn(byId('curve'), picture, CURVE);
  byId('plan-command').textContent = command;
}

// The answer to another question, when somebody looks.
function more(details) {
  const { question } = details.dataset;
  const most = Math.max(Math.floor(131072 / gpusPerServer), 2);
  const pairs = only(ASKED[question]);
  const first = question === 'sweep' ? [['sweep', `servers=1..${most}`]] : [['question', question]];
  if (question === 'interval') pairs.push(['gpus', String(Number(field('servers').value) * gpusPerServer)]);
  const into = details.querySelector('.answer');
  const error = details.querySelector('.error') ?? into.insertAdjacentElement('beforebegin', el('p', { class: 'error', role: 'alert' }));
  return show(question, 'plan', [...first, ...pairs], error, into, ({ command, sheet: found }) => {
    into.replaceChildren(el('p', {}, found.verdict), ...sheet(found), el('p', { class: 'soft' }, el('code', {}, command)));
  });
}

async function copy() {
  let said = 'The link is copied.';
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    said = 'The browser lets no page copy: the link is in the address bar.';
  }
  byId('copied').textContent = said;
}
