"""`python -m sgdf` is `sgdf`."""

from sgdf.cli.main import leave, main

leave(main())
