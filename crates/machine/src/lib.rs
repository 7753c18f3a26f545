//! The only door to the operating system and to vendors' libraries.
