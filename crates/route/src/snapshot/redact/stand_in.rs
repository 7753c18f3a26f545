//! Stand-ins: a keyed function from each kind of identifier to the same kind.

use std::hash::Hasher;
use std::net::{Ipv4Addr, Ipv6Addr};

use siphasher::sip::SipHasher24;

/// IPv4 networks whose members stay members, so that a private address stays private: prefix and
/// length (RFC 1918, 3927, 6598, 2544). The first octet stays in any case.
const NETWORKS: &[(u32, u32)] = &[
    (0xac10_0000, 12), // 172.16.0.0
    (0xc0a8_0000, 16), // 192.168.0.0
    (0xa9fe_0000, 16), // 169.254.0.0
    (0x6440_0000, 10), // 100.64.0.0
    (0xc612_0000, 15), // 198.18.0.0
];
/// Bits of an IPv4 address that stay.
const KEPT_BITS: u32 = 8;
/// `fe80::/64`.
const LINK_LOCAL: u64 = 0xfe80 << 48;
/// The kinds of identifier that name themselves at the start.
const TAGS: &[&str] = &[
    "nqn.2014-08.org.nvmexpress:uuid:",
    "nqn.2014-08.org.nvmexpress:",
    "nqn.",
    "iqn.",
    "eui.",
    "naa.",
    "t10.",
    "nvme.",
    "uuid.",
    "uuid:",
];

/// The second half of the hash's key, `crowfly!`: the salt is the half that is secret.
const SECOND_KEY: u64 = u64::from_be_bytes(*b"crowfly!");
/// From how many letters and digits on an identifier is replaced digit by digit: 32 bits.
const MIN_DIGITS: usize = 8;

/// The stand-ins of one salt.
pub(super) struct StandIns {
    salt: u64,
}

impl StandIns {
    pub fn new(salt: u64) -> Self {
        Self { salt }
    }

    /// A keyed hash; `kind` keeps equal texts of different kinds apart.
    fn hash(&self, kind: &str, original: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.salt, SECOND_KEY);
        hasher.write(kind.as_bytes());
        hasher.write(&[0]);
        hasher.write(original);
        hasher.finish()
    }

    fn word(&self, kind: &str, original: &str) -> String {
        let hash = self.hash(kind, original.as_bytes()) >> 24;
        format!("{kind}-{hash:010x}")
    }

    /// A host's name; its domain becomes another stand-in, so that a name with and without a domain
    /// can be seen to be the same host's.
    pub fn host(&self, name: &str) -> String {
        if is_no_host(name) {
            return name.to_owned();
        }
        if let Ok(address) = name.parse() {
            return self.ipv4(address).to_string();
        }
        if let Ok(address) = name.parse() {
            return self.ipv6(address).to_string();
        }
        let lower = name.to_ascii_lowercase();
        match lower.split_once('.') {
            Some((host, domain)) if !host.is_empty() && !domain.is_empty() => {
                format!(
                    "{}.{}",
                    self.word("host", host),
                    self.word("domain", domain)
                )
            }
            _ => self.word("host", &lower),
        }
    }

    pub fn user(&self, name: &str) -> String {
        if name == "root" {
            return name.to_owned();
        }
        self.word("user", name)
    }

    pub fn serial(&self, serial: &str) -> String {
        self.word("serial", serial.trim())
    }

    /// Something that identifies and has no other meaning: the same form where it is long enough for
    /// different ones to stay different.
    pub fn opaque(&self, original: &str) -> String {
        let letters = original.chars().filter(|c| c.is_alphanumeric()).count();
        match letters {
            0 => original.to_owned(),
            1..MIN_DIGITS => self.word("id", original),
            _ => self.digits(original),
        }
    }

    /// The same letters' places with other digits: hexadecimal digits are replaced, dashes and
    /// other marks stay.
    pub fn digits(&self, original: &str) -> String {
        let lower = original.to_ascii_lowercase();
        let mut stream = (0_u32..).flat_map(|block| {
            let kind = format!("digits {block}");
            self.hash(&kind, lower.as_bytes()).to_be_bytes()
        });
        let mut nibble = || stream.next().map_or(0, |byte| u32::from(byte & 15));
        original
            .chars()
            .map(|c| match c {
                c if c.is_ascii_uppercase() => char::from_digit(nibble(), 16)
                    .unwrap_or('0')
                    .to_ascii_uppercase(),
                c if c.is_alphanumeric() => char::from_digit(nibble(), 16).unwrap_or('0'),
                mark => mark,
            })
            .collect()
    }

    /// An identifier behind the name of its kind, which stays.
    pub fn tagged(&self, text: &str) -> String {
        let tag = TAGS.iter().find(|tag| text.starts_with(**tag)).copied();
        let tag = tag.unwrap_or_default();
        let rest = text.get(tag.len()..).unwrap_or_default();
        // Only the name of a kind, such as the discovery subsystem's.
        if tag == "nqn." && rest == "2014-08.org.nvmexpress.discovery" {
            return text.to_owned();
        }
        format!("{tag}{}", self.opaque(rest))
    }

    /// `LVM-…`, `CRYPT-LUKS2-…-name`, `part1-mpath-…`: leading words of capitals, and of a partition
    /// or multipath, say the kind and stay.
    pub fn device_mapper(&self, text: &str) -> String {
        let is_kind = |part: &str| {
            let capitals = part
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
            let known = part == "mpath" || part.starts_with("part");
            known
                || (capitals
                    && part.starts_with(|c: char| c.is_ascii_uppercase())
                    && part.len() <= 8)
        };
        let mut rest = text;
        while let Some((part, after)) = rest.split_once('-') {
            if !is_kind(part) {
                break;
            }
            rest = after;
        }
        let kept = text.len() - rest.len();
        format!(
            "{}{}",
            text.get(..kept).unwrap_or_default(),
            self.opaque(rest)
        )
    }

    /// A number that identifies something; zero says that there is none and stays.
    pub fn number(&self, text: &str) -> String {
        let hex = text.strip_prefix("0x");
        let value = match hex {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match value {
            Ok(0) => text.to_owned(),
            Ok(value) => {
                let hash = self.hash("number", &value.to_be_bytes()) | 1;
                if hex.is_some() {
                    format!("{hash:#x}")
                } else {
                    hash.to_string()
                }
            }
            Err(_) => self.digits(text),
        }
    }

    pub fn mac(&self, mac: [u8; 6]) -> [u8; 6] {
        if mac == [0; 6] || mac == [0xff; 6] {
            return mac;
        }
        let [_, _, _, b1, b2, b3, b4, b5] = self.hash("mac", &mac).to_be_bytes();
        // Locally administered, as no maker's is.
        [0x02, b1, b2, b3, b4, b5]
    }

    /// A GUID or EUI-64; one made of a MAC stays the one made of that MAC's stand-in (RFC 4291,
    /// appendix A).
    pub fn guid(&self, guid: u64) -> u64 {
        let [a, b, c, d, e, f, g, h] = guid.to_be_bytes();
        match (d, e) {
            _ if guid == 0 => 0,
            (0xff, 0xfe) => {
                let [a, b, c, f, g, h] = self.mac([a ^ 2, b, c, f, g, h]);
                u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, f, g, h])
            }
            _ => {
                let hash = self.hash("guid", &guid.to_be_bytes());
                // Locally administered, and never the form made of a MAC.
                (hash & 0x00ff_ff00_ffff_ffff) | (0x02 << 56)
            }
        }
    }

    pub fn ipv6(&self, address: Ipv6Addr) -> Ipv6Addr {
        if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
            return address;
        }
        if let Some(mapped) = address.to_ipv4_mapped() {
            return self.ipv4(mapped).to_ipv6_mapped();
        }
        let bits = address.to_bits();
        let (prefix, interface) = ((bits >> 64) as u64, bits as u64);
        let prefix = match prefix {
            LINK_LOCAL | 0 => prefix,
            _ => {
                let hash = self.hash("prefix", &prefix.to_be_bytes());
                match prefix >> 56 {
                    0xfc | 0xfd => (hash >> 8) | (0xfd << 56),
                    // Documentation's 2001:db8::/32 (RFC 3849): nobody's.
                    _ => (hash >> 32) | (0x2001_0db8 << 32),
                }
            }
        };
        Ipv6Addr::from_bits((u128::from(prefix) << 64) | u128::from(self.guid(interface)))
    }

    /// A permutation that keeps common prefixes, as Crypto-PAn does (Xu, Fan, Ammar and Moon,
    /// *Prefix-preserving IP address anonymization*, ICNP 2002): each bit is flipped or not as a
    /// keyed function of the bits before it says.
    pub fn ipv4(&self, address: Ipv4Addr) -> Ipv4Addr {
        let [first, ..] = address.octets();
        if first == 0 || first == 127 || first >= 224 {
            return address;
        }
        let bits = address.to_bits();
        let mut flips = 0;
        for length in KEPT_BITS..u32::BITS {
            let prefix = bits >> (u32::BITS - length);
            // On the way to a network that stays nothing is flipped, so no other can become it.
            let on_the_way = NETWORKS
                .iter()
                .any(|(network, kept)| length < *kept && network >> (u32::BITS - length) == prefix);
            if !on_the_way {
                let known = u64::from(length) << 32 | u64::from(prefix);
                let flip = self.hash("ipv4", &known.to_be_bytes()) as u32 & 1;
                flips |= flip << (u32::BITS - 1 - length);
            }
        }
        Ipv4Addr::from_bits(bits ^ flips)
    }

    /// Octets as `aa:bb:…`: 6 are a MAC, 8 a GUID, 20 an IPoIB address, 4 a tunnel's IPv4 address.
    /// `None` when it is not of that form.
    pub fn hardware_address_text(&self, text: &str) -> Option<String> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let octets: Option<Vec<u8>> = text.split(separator).map(|part| hex(part, 2)).collect();
        let octets = octets?;
        let replaced = match *octets.as_slice() {
            [a, b, c, d] => self.ipv4(Ipv4Addr::new(a, b, c, d)).octets().to_vec(),
            [a, b, c, d, e, f] => self.mac([a, b, c, d, e, f]).to_vec(),
            _ if octets.iter().all(|octet| *octet == 0 || *octet == 0xff) => octets,
            [a, b, c, d, e, f, g, h] => {
                let guid = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                self.guid(guid).to_be_bytes().to_vec()
            }
            _ => match octets.split_last_chunk::<16>() {
                // Flags and queue pair number, then a GID (RFC 4391, section 9.1.1).
                Some((queue_pair, gid)) if queue_pair.len() == 4 => {
                    let gid = self.ipv6(Ipv6Addr::from(*gid));
                    [queue_pair, &gid.octets()].concat()
                }
                _ => return None,
            },
        };
        let replaced: Vec<String> = replaced
            .iter()
            .map(|octet| format!("{octet:02x}"))
            .collect();
        Some(replaced.join(&separator.to_string()))
    }

    /// Four groups of four digits, `0c42:a103:00aa:bbcc`, or `0x0c42…`.
    pub fn guid_text(&self, text: &str) -> Option<String> {
        if let Some(digits) = text.strip_prefix("0x") {
            return Some(format!(
                "{:#018x}",
                self.guid(u64::from_str_radix(digits, 16).ok()?)
            ));
        }
        let groups: Option<Vec<u16>> = text.split(':').map(|group| hex(group, 4)).collect();
        let [a, b, c, d] = groups?.try_into().ok()?;
        let join = |high: u16, low: u16| u64::from(high) << 16 | u64::from(low);
        let guid = self.guid(join(a, b) << 32 | join(c, d));
        Some(format!(
            "{:04x}:{:04x}:{:04x}:{:04x}",
            guid >> 48,
            guid >> 32 & 0xffff,
            guid >> 16 & 0xffff,
            guid & 0xffff
        ))
    }

    /// An IPv6 address or GID in the form it was written: in full, as the kernel's tables have it,
    /// or short.
    pub fn gid_text(&self, text: &str) -> Option<String> {
        let address: Ipv6Addr = text.parse().ok()?;
        let replaced = self.ipv6(address);
        if replaced == address {
            return Some(text.to_owned());
        }
        if text.len() < "0000:0000:0000:0000:0000:0000:0000:0000".len() || text.contains('.') {
            return Some(replaced.to_string());
        }
        let groups: Vec<String> = replaced
            .segments()
            .iter()
            .map(|group| format!("{group:04x}"))
            .collect();
        Some(groups.join(":"))
    }
}

/// Exactly `digits` hexadecimal digits.
fn hex<N: TryFrom<u32>>(text: &str, digits: usize) -> Option<N> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then_some(())?;
    u32::from_str_radix(text, 16).ok()?.try_into().ok()
}

/// Names that say *this machine* or *none*.
pub(super) fn is_no_host(name: &str) -> bool {
    matches!(
        name,
        "" | "(none)" | "localhost" | "localhost.localdomain" | "P2PHANDSHAKE"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: StandIns = StandIns { salt: 7 };

    #[test]
    fn what_says_none_or_everyone_stays() {
        assert_eq!(S.mac([0; 6]), [0; 6]);
        assert_eq!(S.mac([0xff; 6]), [0xff; 6]);
        assert_eq!(S.guid(0), 0);
        for stays in ["127.0.0.1", "0.0.0.0", "255.255.252.0", "224.0.0.1"] {
            let address: Ipv4Addr = stays.parse().expect("an address");
            assert_eq!(S.ipv4(address), address);
        }
        for stays in ["::", "::1", "ff02::1"] {
            let address: Ipv6Addr = stays.parse().expect("an address");
            assert_eq!(S.ipv6(address), address);
        }
        assert_eq!(S.host("localhost"), "localhost");
        assert_eq!(S.number("0"), "0");
        assert_eq!(S.number("0x0"), "0x0");
    }

    #[test]
    fn a_gid_made_of_a_mac_stays_the_one_made_of_its_stand_in() {
        let mac = S.hardware_address_text("0c:42:a1:1d:50:6a").expect("a MAC");
        let gid = S
            .gid_text("fe80:0000:0000:0000:0e42:a1ff:fe1d:506a")
            .expect("a GID");
        let octets: Vec<&str> = mac.split(':').collect();
        assert_eq!(octets[0], "02");
        let made = format!(
            "fe80:0000:0000:0000:00{}:{}ff:fe{}:{}{}",
            octets[1], octets[2], octets[3], octets[4], octets[5]
        );
        assert_eq!(gid, made);
    }

    #[test]
    fn an_ipoib_address_keeps_its_queue_pair_and_the_guid_of_its_port() {
        let address = "80:00:02:08:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:1d:50:6a";
        let replaced = S.hardware_address_text(address).expect("20 octets");
        let guid = S.guid_text("0c42:a103:001d:506a").expect("a GUID");
        let octets: String = replaced.split(':').collect();
        assert!(octets.starts_with("80000208fe80000000000000"), "{octets}");
        assert!(octets.ends_with(&guid.replace(':', "")), "{octets} {guid}");
    }

    #[test]
    fn a_mapped_address_stays_mapped_and_private() {
        let gid = S
            .gid_text("0000:0000:0000:0000:0000:ffff:c0a8:0a2c")
            .expect("a GID");
        assert!(
            gid.starts_with("0000:0000:0000:0000:0000:ffff:c0a8:"),
            "{gid}"
        );
        assert_ne!(gid, "0000:0000:0000:0000:0000:ffff:c0a8:0a2c");
        let plain = S.ipv4(Ipv4Addr::new(192, 168, 10, 44));
        let [a, b, c, d] = plain.octets();
        assert!(gid.ends_with(&format!("{a:02x}{b:02x}:{c:02x}{d:02x}")));
    }

    #[test]
    fn the_kind_of_an_identifier_stays() {
        for (original, kept) in [
            ("eui.0025385b01411001", "eui."),
            (
                "nqn.2014-08.org.nvmexpress:uuid:6a3f5bd1-8b5e-4ce5-9d4a-5f6c3e1b2a90",
                "nqn.2014-08.org.nvmexpress:uuid:",
            ),
            ("nqn.2023-01.org.example.storage:volume", "nqn."),
        ] {
            let replaced = S.tagged(original);
            assert!(replaced.starts_with(kept), "{replaced}");
            assert_ne!(replaced, original);
            assert_eq!(replaced.len(), original.len());
        }
        let discovery = "nqn.2014-08.org.nvmexpress.discovery";
        assert_eq!(S.tagged(discovery), discovery);
        let lvm = S.device_mapper("LVM-Zq1xY0aBcDeFgHiJkLmNoPqRsTuVwXyZ");
        assert!(lvm.starts_with("LVM-") && !lvm.contains("Zq1x"), "{lvm}");
        let luks = S.device_mapper("CRYPT-LUKS2-0f3c5a7e9b1d4c6f8a2e4b6d8f0a1c3e-vault");
        assert!(
            luks.starts_with("CRYPT-LUKS2-") && !luks.contains("vault"),
            "{luks}"
        );
        assert!(
            S.device_mapper("part2-mpath-36005")
                .starts_with("part2-mpath-")
        );
    }

    proptest! {
        #[test]
        fn ipv4_stand_ins_share_exactly_the_prefix_that_the_originals_share(a in any::<u32>(), b in any::<u32>(), salt in any::<u64>()) {
            let s = StandIns::new(salt);
            let usual = |bits: u32| !matches!(bits >> 24, 0 | 127 | 224..);
            prop_assume!(usual(a) && usual(b));
            let (x, y) = (s.ipv4(a.into()).to_bits(), s.ipv4(b.into()).to_bits());
            prop_assert_eq!((a ^ b).leading_zeros(), (x ^ y).leading_zeros());
            prop_assert_eq!(a >> 24, x >> 24);
        }

        #[test]
        fn a_private_network_maps_onto_itself(low in any::<u16>(), salt in any::<u64>()) {
            let s = StandIns::new(salt);
            let [c, d] = low.to_be_bytes();
            for (a, b) in [(192, 168), (169, 254)] {
                let [x, y, ..] = s.ipv4(Ipv4Addr::new(a, b, c, d)).octets();
                prop_assert_eq!((x, y), (a, b));
            }
            let inside = s.ipv4(Ipv4Addr::new(172, 16 | (c & 15), c, d));
            prop_assert!(inside.is_private());
            let outside = s.ipv4(Ipv4Addr::new(172, 32 | (c & 15), c, d));
            prop_assert!(!outside.is_private());
        }

        #[test]
        fn any_text_has_stand_ins(text in any::<String>()) {
            let _ = (S.host(&text), S.user(&text), S.serial(&text), S.tagged(&text));
            let _ = (S.device_mapper(&text), S.number(&text), S.guid_text(&text), S.gid_text(&text));
            let _ = S.hardware_address_text(&text);
            prop_assert_eq!(S.digits(&text).chars().count(), text.chars().count());
        }
    }
}
