// Bars to one scale. The numbers and their words come from the server.

import { el } from './dom.js';

const percent = (part, whole) => `${(100 * part) / whole}%`;

function bar({ label, text, value, from, way }, most) {
  const track = el('div', { class: 'track', 'aria-hidden': 'true' });
  const fill = el('div', { class: 'fill' });
  fill.style.width = percent(from ?? value, most);
  track.append(fill);
  if (from != null) {
    const spread = el('div', { class: 'spread' });
    spread.style.left = percent(from, most);
    spread.style.width = percent(value - from, most);
    track.append(spread);
  }
  return el('div', { class: `bar ${way}` }, el('dt', {}, label), el('dd', {}, text), track);
}

export function chart({ title, bars }) {
  const most = Math.max(...bars.map(({ value }) => value), Number.MIN_VALUE);
  return el('div', {}, el('h3', {}, title), el('dl', {}, ...bars.map((one) => bar(one, most))));
}
