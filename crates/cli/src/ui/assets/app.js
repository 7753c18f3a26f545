// The parts of the page, and which of them is shown.

import { ask } from './ask.js';
import { byId } from './dom.js';
import { PARTS, read } from './link.js';
import * as doctor from './doctor.js';
import * as plan from './plan.js';
import * as routes from './routes.js';

const parts = { routes, plan, doctor };
const TITLES = { routes: 'Routes', plan: 'Plan', doctor: 'Doctor' };

function show() {
  const { part, state } = read();
  for (const name of PARTS) byId(name).hidden = name !== part;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${part}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = `${TITLES[part]} – crowfly`;
  parts[part].open(state);
}

async function start() {
  const about = await ask('about');
  for (const part of Object.values(parts)) part.start(about);
  document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault();
    byId('content').focus();
  });
  window.addEventListener('hashchange', show);
  show();
  document.documentElement.dataset.ready = 'true';
}

start().catch((error) => {
  byId('content').prepend(error.message);
});
