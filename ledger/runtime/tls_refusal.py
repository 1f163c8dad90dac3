"""What a refused handshake of TLS means, for people.

Inside: the sentence for certificates whose form alone is at fault. Not inside: handshakes, contexts.

Source: Python 3.13, "What's new": ``ssl.create_default_context`` sets VERIFY_X509_STRICT; RFC 5280 4.2.1.
"""

from __future__ import annotations

import re
import ssl

# What OpenSSL says of a certificate that only its strict rules refuse.
_FORM = re.compile("key identifier|key usage|keyCertSign|basic constraints|path length", re.IGNORECASE)


def refusal_text(error: BaseException) -> str:
    """What the error of a handshake says, and what helps if only the form of a certificate is at fault."""
    text = str(error) or repr(error)
    if isinstance(error, ssl.SSLCertVerificationError) and _FORM.search(str(error.verify_message)):
        text += (
            "; Python 3.13 and newer refuse a certificate without this (RFC 5280), Java and older versions do"
            " not: make the authority and its certificates again, as in docs/security.md"
        )
    return text
