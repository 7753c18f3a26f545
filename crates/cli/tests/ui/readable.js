// What the page owes to readers who see little, hear it, or have no mouse. Returns what it finds wrong.
(() => {
  const wrong = [];
  const say = (element, what) => wrong.push(`${what}: ${element.outerHTML.slice(0, 160)}`);
  const shown = (element) => element.checkVisibility({ checkVisibilityCSS: true }) && element.getClientRects().length > 0;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);

  const name = (element) => {
    const by = element.getAttribute('aria-labelledby');
    if (by) return by.split(' ').map((id) => document.getElementById(id)?.textContent ?? '').join(' ').trim();
    if (element.getAttribute('aria-label')) return element.getAttribute('aria-label').trim();
    if (element.labels?.length) return [...element.labels].map((label) => label.textContent).join(' ').trim();
    return (element.textContent || element.title || element.alt || '').trim();
  };

  if (document.documentElement.lang !== 'en') wrong.push('no language');
  if (!document.title) wrong.push('no title');
  if (all('main').length !== 1) wrong.push('not one main');
  if (all('h1').length < 1) wrong.push('no h1');
  if (!document.querySelector('meta[name=viewport]')?.content.includes('width=device-width')) wrong.push('no viewport');
  if (/maximum-scale|user-scalable/.test(document.querySelector('meta[name=viewport]').content)) wrong.push('no zoom');

  const ids = new Set();
  for (const element of document.querySelectorAll('[id]')) {
    if (ids.has(element.id)) say(element, 'id twice');
    ids.add(element.id);
  }
  for (const element of all('button,a[href],input,select,textarea,summary,[role=img],[role=group],[role=region],nav')) {
    if (!name(element)) say(element, 'no name');
  }
  for (const element of all('[aria-labelledby],[aria-describedby],[aria-controls],label[for],input[list]')) {
    for (const attribute of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for', 'list']) {
      const target = element.getAttribute(attribute);
      if (target && !document.getElementById(target)) say(element, `${attribute} leads nowhere`);
    }
  }
  for (const element of all('[tabindex]')) {
    if (element.tabIndex > 0) say(element, 'out of order');
  }
  for (const element of all('.wide')) {
    if (element.tabIndex !== 0) say(element, 'scrolls and cannot be reached');
  }
  for (const element of all('th')) {
    if (!element.textContent.trim() && element.cellIndex > 0 && element.closest('table').querySelectorAll('td:nth-child(' + (element.cellIndex + 1) + ')').length === 0) say(element, 'empty heading');
  }
  for (const element of all('ul,ol')) {
    if ([...element.children].some((child) => child.tagName !== 'LI')) say(element, 'not only items');
  }
  for (const element of all('dl > *')) {
    if (!['DT', 'DD', 'DIV'].includes(element.tagName)) say(element, 'not only terms');
  }
  let level = 0;
  for (const element of all('h1,h2,h3,h4')) {
    const next = Number(element.tagName[1]);
    if (next > level + 1) say(element, `heading after h${level}`);
    level = next;
  }
  // A finger is wider than an arrow: 24 by 24 at least (WCAG 2.2, 2.5.8), links in text aside.
  for (const element of all('button,select,nav a,.player a,summary,input')) {
    const { width, height } = element.getBoundingClientRect();
    if ((width < 24 || height < 24) && element.type !== 'checkbox') say(element, `small ${width}x${height}`);
  }

  // Contrast (WCAG 2.2, 1.4.3 and 1.4.11), worked out as the standard does.
  const rgb = (color) => {
    const parts = color.match(/[\d.]+/g).map(Number);
    return { channels: parts.slice(0, 3), alpha: parts[3] ?? 1 };
  };
  const luminance = (channels) => {
    const [r, g, b] = channels.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { channels, alpha } = rgb(getComputedStyle(at).backgroundColor);
      if (alpha > 0) return channels;
    }
    return rgb(getComputedStyle(document.body).backgroundColor).channels;
  };
  const words = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  for (const element of all('body *').filter((one) => !one.closest('svg') && words(one))) {
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = contrast(rgb(style.color).channels, background(element));
    if (ratio < (large ? 3 : 4.5) && !element.closest(':disabled')) say(element, `contrast ${ratio.toFixed(2)}`);
    if (size < 11) say(element, `letters of ${size}`);
  }
  for (const element of all('svg text')) {
    if (element.getRootNode() !== document || element.closest('.wide')) continue;
    const ratio = contrast(rgb(getComputedStyle(element).fill).channels, background(element.closest('div')));
    if (ratio < 4.5) say(element, `contrast ${ratio.toFixed(2)}`);
  }
  for (const element of all('input:not([type=range]):not([type=checkbox]):not([type=file]),select,textarea,button')) {
    const ratio = contrast(rgb(getComputedStyle(element).borderTopColor).channels, background(element.parentElement));
    if (ratio < 3) say(element, `border ${ratio.toFixed(2)}`);
  }
  return wrong;
})()
