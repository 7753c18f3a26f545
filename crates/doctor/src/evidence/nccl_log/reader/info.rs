//! What the words of an INFO line mean.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;

use super::{Message, NcclReader};
use crate::evidence::line::excerpt;
use crate::evidence::nccl_log::channel::ChannelLine;
use crate::evidence::nccl_log::gdr::GdrLine;
use crate::evidence::nccl_log::network::{IbUse, Interface, SocketUse};
use crate::evidence::nccl_log::{Note, PluginNote, RingSummary, Setting, SettingOrigin, paths};

/// Words without which a message tells of neither a setting nor a plugin. One search for all of them
/// spares most messages (a line for each operation) a dozen searches.
static SETTING_OR_PLUGIN: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    AhoCorasick::new([
        " set by environment to ",
        " set to ",
        "Using network ",
        "Using internal ",
        "Assigned NET plugin ",
        "NET plugin ",
        "Plugin Path : ",
        "P2P plugin ",
        "Loaded net plugin ",
        "No plugin found",
    ])
    .ok()
});

/// What names a communicator.
static COMMUNICATOR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("comm 0x"));

impl NcclReader {
    pub(super) fn info(&mut self, message: &Message<'_, '_>) {
        let text = message.text;
        match text.bytes().next() {
            Some(b'C' | b'R') if self.channel(message) => {}
            Some(b'C') if text.starts_with("Connected ") => self.connected(message),
            Some(b'C') if text.starts_with("Could not enable P2P") => {
                self.note(message, Note::PeerAccessRefused(excerpt(text)));
            }
            Some(b'C') if text.starts_with("CONFIG_DMABUF_MOVE_NOTIFY and") => {
                self.note(message, Note::DmaBufKernelUnsupported);
            }
            Some(b'T') if text.starts_with("Trees") => {}
            Some(b'B') if text.starts_with("Bootstrap") => self.bootstrap(message),
            Some(b'G') if text.starts_with("GPU/") => {
                for path in paths::parse(text) {
                    self.paths.see(path, message.by, || message.cite());
                }
            }
            Some(b'G' | b'N') if self.gdr(message) => {}
            Some(b'N') if text.starts_with("NET/") => self.net(message),
            Some(b'N') if text.starts_with("NVLS multicast support is ") => {
                self.note(message, Note::Nvls(!text.contains("not available")));
            }
            Some(b'N' | b'R' | b'U' | b'P' | b'I' | b'A' | b'F')
                if may_tell_of_setting_or_plugin(text)
                    && (self.setting(message) || self.plugin(message)) => {}
            _ => self.remark(message),
        }
    }

    fn channel(&mut self, message: &Message<'_, '_>) -> bool {
        let Some(channel) = ChannelLine::parse(message.text) else {
            return false;
        };
        self.connections
            .take(channel, message.by, message.line, message.whole);
        true
    }

    fn connected(&mut self, message: &Message<'_, '_>) {
        let text = message.text;
        if let Some(rest) = text.strip_prefix("Connected all rings") {
            let flag = |mark: &str| {
                let digit = rest.split_once(mark)?.1.bytes().next()?;
                matches!(digit, b'0' | b'1').then_some(digit == b'1')
            };
            let summary = RingSummary {
                pxn: flag("PXN "),
                gdr: flag("GDR "),
            };
            self.rings.see(summary, message.by, || message.cite());
        } else if text.starts_with("Connected NVLS") {
            self.note(message, Note::NvlsConnected);
        } else if text.starts_with("Connected Collnet") || text.starts_with("Connected CollNet") {
            self.note(message, Note::CollNetConnected);
        }
    }

    fn bootstrap(&mut self, message: &Message<'_, '_>) {
        if let Some((_, list)) = message.text.split_once(": Using ") {
            let interfaces = Interface::parse_list(list);
            if !interfaces.is_empty() {
                self.bootstrap
                    .see(interfaces, message.by, || message.cite());
            }
        }
    }

    fn gdr(&mut self, message: &Message<'_, '_>) -> bool {
        match GdrLine::parse(message.text) {
            Some(GdrLine::Pair(pair)) => self.gdr_pairs.see(pair, message.by, || message.cite()),
            Some(GdrLine::Nic(nic)) => self.gdr_nics.see(nic, message.by, || message.cite()),
            None if message.text.starts_with("GDRDMA not enabled") => {
                self.note(message, Note::GdrModuleMissing)
            }
            None => return false,
        }
        true
    }

    /// `NET/IB : …`, `NET/Socket : …`, `NET/Plugin: …`, `NET/OFI …` and networks of other makers.
    fn net(&mut self, message: &Message<'_, '_>) {
        let text = message.text;
        let name_end = text[4..].find([' ', ':']).map_or(text.len(), |at| at + 4);
        let (name, rest) = (
            &text[4..name_end],
            text[name_end..].trim_start_matches([' ', ':']),
        );
        match name {
            "Plugin" => {
                self.plugin(message);
            }
            "OFI" => self.ofi(message, rest),
            _ if rest.starts_with("No device found") => self.note(message, Note::NoIbDevice),
            "IB" => match rest.strip_prefix("Using") {
                Some(list) if message.whole => {
                    self.ib
                        .see(IbUse::parse(list), message.by, || message.cite());
                }
                _ if rest.starts_with("Data Direct DMA Interface") => {
                    let device = rest.rsplit(' ').next().unwrap_or_default();
                    self.note(message, Note::DataDirect(excerpt(device)));
                }
                _ => {}
            },
            _ if name.contains("Socket") && rest.starts_with("Using ") => {
                let used = SocketUse {
                    network: name.to_owned(),
                    interfaces: Interface::parse_list(&rest["Using ".len()..]),
                };
                self.sockets.see(used, message.by, || message.cite());
            }
            _ => self.plugin_note(message, PluginNote::Speaks(excerpt(name))),
        }
    }

    fn ofi(&mut self, message: &Message<'_, '_>, rest: &str) {
        let word = |mark: &str| {
            Some(
                rest.split_once(mark)?
                    .1
                    .split([' ', ','])
                    .next()?
                    .to_owned(),
            )
        };
        let lower = rest.to_ascii_lowercase();
        let note = if let Some(version) =
            word("aws-ofi-nccl ").filter(|v| v.starts_with(|c: char| c.is_ascii_digit()))
        {
            PluginNote::OfiPlugin(version)
        } else if let Some(version) = word("Using Libfabric version ") {
            PluginNote::Libfabric(version)
        } else if let Some(protocol) = word("Using transport protocol ") {
            PluginNote::OfiProtocol(protocol)
        } else if let Some((_, name)) = lower.split_once("selected provider is ") {
            PluginNote::OfiProvider {
                provider: excerpt(name.split([' ', ',']).next().unwrap_or_default()),
                nics: word("(found ").and_then(|n| n.parse().ok()),
            }
        } else if let Some(platform) = word("Running on ").filter(|_| rest.contains(" platform")) {
            PluginNote::Platform(platform)
        } else {
            self.ofi_remark(message, rest);
            return;
        };
        self.plugin_note(message, note);
    }

    fn ofi_remark(&mut self, message: &Message<'_, '_>, rest: &str) {
        if let Some((_, answer)) = rest.split_once("Support for DMA-BUF registrations: ") {
            self.note(message, Note::PluginDmaBuf(answer.starts_with("true")));
        } else if [
            "disabling GDR",
            "GDR disabled",
            "GDR not supported",
            "Disabling GDR",
        ]
        .iter()
        .any(|words| rest.contains(words))
        {
            self.note(message, Note::PluginDisablesGdr(excerpt(rest)));
        } else if let Some(set) = set_by_plugin(rest) {
            self.settings.see(set, message.by, || message.cite());
        }
    }

    fn setting(&mut self, message: &Message<'_, '_>) -> bool {
        let found = [" set by environment to ", " set to "]
            .iter()
            .find_map(|words| message.text.split_once(words));
        let Some((name, value)) = found.filter(|(name, _)| is_variable(name)) else {
            return false;
        };
        let setting = Setting {
            name: name.to_owned(),
            value: setting_value(value),
            origin: SettingOrigin::Environment,
        };
        self.settings.see(setting, message.by, || message.cite());
        true
    }

    fn plugin(&mut self, message: &Message<'_, '_>) -> bool {
        let text = message.text;
        let after = |words: &str| text.split_once(words).map(|(_, rest)| rest.trim());
        let network = after("Using network ").or_else(|| after("Using internal Network "));
        if let Some(network) = network {
            self.networks
                .see(excerpt(network), message.by, || message.cite());
            return true;
        }
        if let Some(network) =
            after("Assigned NET plugin ").and_then(|t| t.strip_suffix(" to comm"))
        {
            self.networks
                .see(excerpt(network), message.by, || message.cite());
            return true;
        }
        let note = if let Some(name) = after("Initialized NET plugin ") {
            PluginNote::Initialized(excerpt(name))
        } else if let Some(name) = after("Failed to initialize NET plugin ") {
            PluginNote::Failed(excerpt(name))
        } else if let Some(path) = after("Plugin Path : ") {
            PluginNote::Path(excerpt(path))
        } else if let Some(name) = after("P2P plugin ") {
            PluginNote::Loaded {
                name: excerpt(name.rsplit(' ').next().unwrap_or(name)),
                interface: name.split_once(' ').map(|(version, _)| excerpt(version)),
            }
        } else if let Some(name) = after("Loaded net plugin ") {
            let (name, version) = name.rsplit_once(" (").unwrap_or((name, ""));
            PluginNote::Loaded {
                name: excerpt(name),
                interface: Some(excerpt(version.trim_end_matches(')'))).filter(|v| !v.is_empty()),
            }
        } else if text.contains("No plugin found") || text.contains("Using internal network plugin")
        {
            PluginNote::NotFound
        } else {
            return false;
        };
        self.plugin_note(message, note);
        true
    }

    fn remark(&mut self, message: &Message<'_, '_>) {
        let text = message.text;
        let note = if text.starts_with("NVLS comm 0x") {
            Note::NvlsConnected
        } else if COMMUNICATOR.find(text.as_bytes()).is_some() {
            self.members
                .take(text, message.by, message.line, message.whole);
            return;
        } else if text.starts_with("DMA-BUF is available")
            || text.starts_with("DMA_BUF Support Enabled")
        {
            Note::DmaBufAvailable
        } else if text.starts_with("Dmabuf feature disabled") {
            Note::DmaBufDisabled
        } else if text.starts_with("DMA_BUF_SUPPORT Failed") {
            Note::DmaBufKernelUnsupported
        } else if let Some(reason) = text.strip_prefix("PXN Disabled") {
            Note::PxnDisabled(excerpt(reason.trim()))
        } else if let Some(place) = text.strip_prefix("Found ").filter(|t| t.contains("peer")) {
            Note::GdrModuleFound(excerpt(place))
        } else if let Some(number) = text.strip_prefix("cudaDriverVersion ") {
            match number.trim().parse() {
                Ok(number) => Note::CudaDriver(number),
                Err(_) => return,
            }
        } else if let Some(version) = text.strip_prefix("Kernel version: ") {
            Note::KernelVersion(excerpt(version.trim()))
        } else if let Some(hint) = text.strip_prefix("HINT: ") {
            Note::Hint(excerpt(hint))
        } else if text.ends_with("Connected CollNet") {
            Note::CollNetConnected
        } else if let Some(code) = error_code(text) {
            Note::ErrorTrace(code)
        } else {
            return;
        };
        self.note(message, note);
    }
}

fn may_tell_of_setting_or_plugin(text: &str) -> bool {
    SETTING_OR_PLUGIN
        .as_ref()
        .is_none_or(|words| words.is_match(text))
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// A value without the full stop that NCCL puts after numbers.
fn setting_value(value: &str) -> String {
    let value = value.trim();
    let number = value.strip_suffix('.').filter(|n| n.parse::<i64>().is_ok());
    excerpt(number.unwrap_or(value))
}

/// `Setting NCCL_PROTO to "simple"`, `Setting X environment variable to 1`, `Adding X=1 to environment`.
fn set_by_plugin(text: &str) -> Option<Setting> {
    let (name, value) = if let Some(rest) = text.strip_prefix("Adding ") {
        rest.strip_suffix(" to environment")?.split_once('=')?
    } else {
        let (name, value) = text.strip_prefix("Setting ")?.split_once(" to ")?;
        (name.trim_end_matches(" environment variable"), value)
    };
    is_variable(name).then(|| Setting {
        name: name.to_owned(),
        value: setting_value(value.trim_matches('"')),
        origin: SettingOrigin::Plugin,
    })
}

/// `transport/net.cc:753 -> 6`: the result code on the way out of an error.
fn error_code(text: &str) -> Option<u32> {
    let (place, code) = text.rsplit_once(" -> ")?;
    place.contains(".cc:").then_some(())?;
    code.split_whitespace().next()?.parse().ok()
}
