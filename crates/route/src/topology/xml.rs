//! XML with limits, because such files are mailed around.

use roxmltree::{Document, Node, ParsingOptions};

use super::TopologyError;

/// The largest XML file that is read; a big server's is some hundred kilobytes.
pub(super) const MAX_XML_BYTES: usize = 16 << 20;
/// The most nodes that are read, attributes not counted.
const MAX_XML_NODES: u32 = 400_000;
/// The deepest nesting that is read; PCI hierarchies stay below twenty.
pub(super) const MAX_XML_DEPTH: usize = 64;

pub(super) fn text(bytes: &[u8]) -> Result<&str, TopologyError> {
    if bytes.len() > MAX_XML_BYTES {
        return Err(TopologyError::XmlTooLarge { bytes: bytes.len() });
    }
    std::str::from_utf8(bytes).map_err(|_| TopologyError::Unrecognised {
        begins: "text that is not UTF-8".into(),
    })
}

pub(super) fn parse(text: &str) -> Result<Document<'_>, TopologyError> {
    let options = ParsingOptions {
        // lstopo names a document type. External ones are never loaded, and the reader limits
        // what entities expand to.
        allow_dtd: true,
        nodes_limit: MAX_XML_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)?;
    let mut depth = 0usize;
    let mut node = document.root_element();
    // Down, else sideways, else up until sideways: no recursion whatever the file holds.
    loop {
        if let Some(child) = node.first_element_child() {
            depth += 1;
            if depth > MAX_XML_DEPTH {
                return Err(TopologyError::XmlTooDeep);
            }
            node = child;
            continue;
        }
        while node.next_sibling_element().is_none() {
            match node.parent_element() {
                Some(parent) => node = parent,
                None => return Ok(document),
            }
            depth = depth.saturating_sub(1);
        }
        if let Some(next) = node.next_sibling_element() {
            node = next;
        }
    }
}

/// An attribute as a number, decimal or with `0x`.
pub(super) fn number<N: TryFrom<u64>>(node: Node<'_, '_>, name: &str) -> Option<N> {
    let text = node.attribute(name)?.trim();
    let value = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => text.parse().ok()?,
    };
    N::try_from(value).ok()
}
