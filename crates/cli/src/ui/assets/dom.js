// Making and filling elements. Text is always text; drawings and reports that the server made, in which
// it escaped all text from outside, come in by the one policy that the page allows itself.

const SVG = 'http://www.w3.org/2000/svg';
const policy = globalThis.trustedTypes?.createPolicy('crowfly', { createHTML: (html) => html });

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

export const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

// What the server wrote as HTML.
export function written(element, html) {
  element.innerHTML = policy ? policy.createHTML(html) : html;
}

// What the server drew. A drawing brings its own style, which has to stay with it.
export function drawn(element, picture, style = '') {
  const apart = element.shadowRoot ?? element.attachShadow({ mode: 'open' });
  written(apart, picture);
  apart.append(el('style', {}, style));
  return apart;
}

export const options = (select, choices) =>
  select.replaceChildren(...choices.map(([value, text, disabled]) =>
    el('option', { value, disabled: Boolean(disabled) }, text)));

// Rows of cells as the server worded them.
export function table(columns, rows) {
  const kind = (index) => ({ class: columns[index].number ? 'num' : columns[index].words ? 'words' : null });
  return el('div', { class: 'wide', tabindex: '0' }, el('table', {},
    el('thead', {}, el('tr', {}, ...columns.map((column, index) =>
      el('th', { scope: 'col', ...kind(index) }, column.title)))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...row.map((cell, index) =>
      el('td', kind(index), cell)))))));
}

// The tables, notes and doubts of an answer.
export const sheet = (answer) => [
  ...answer.tables.flatMap((one) => [el('h3', {}, one.title), table(one.columns, one.rows)]),
  ...answer.notes.map((note) => el('p', { class: 'soft' }, note)),
  ...answer.doubts.map((doubt) => el('p', { class: 'is-warn' }, `unsure: ${doubt}`)),
];
