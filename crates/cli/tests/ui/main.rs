//! `crowfly ui` as its readers see it: over HTTP, and in a browser.

mod answers;
mod browser;
mod http;
mod page;
mod readable;
mod served;
mod strangers;
