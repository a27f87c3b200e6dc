"""`python -m sgdf` is `sgdf`."""

from sgdf.cli import leave, main

leave(main())
