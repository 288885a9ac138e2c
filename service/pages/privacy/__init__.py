"""The privacy pages: the work of a privacy officer, from the filing of a request to the letter and the register.

The handlers call the functions of the REST endpoints, so that both check, record and audit the same. A person's
identifier is sent in forms only, because URLs appear in logs.
"""

from service.pages.privacy import corrections, filing, person, registers, request, worklist

PAGES = (worklist, filing, person, corrections, registers, request)
"""In this order: otherwise `file` would match as the id of a request."""
