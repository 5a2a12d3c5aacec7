"""Models on the Hugging Face hub; needs the extra ``hub``."""

from pathlib import Path
from typing import Self

try:
    from huggingface_hub import ModelCard, ModelHubMixin, snapshot_download
except ImportError as error:
    raise ImportError(
        "gtpool.hub needs huggingface_hub: pip install '.[hub]' in a clone"
    ) from error

from gtpool.model.bundle import FILES, Bundle, load_bundle, save_bundle
from gtpool.model.card import model_card


class HubModel(ModelHubMixin, library_name="gtpool"):
    """A trained model that can be pushed to the hub and loaded from it.

    Its folder is that of a bundle, so ``gtpool predict`` accepts a folder from the hub. Files are
    read and written by ``load_bundle`` and ``save_bundle`` instead of the mixin: atomically,
    validated, and without pickle.

    Args:
        bundle: A trained model, from ``load_bundle``.

    Example:
        >>> from gtpool import Classifier, ModelSpec, ShapeSpec
        >>> model = Classifier(ModelSpec(width=8), ShapeSpec(outputs=2, node_width=7))
        >>> HubModel(Bundle(model, {})).generate_model_card().data.library_name
        'gtpool'
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    @classmethod
    def from_bundle(cls, bundle: Bundle | Path | str, *, licence: str | None = None) -> Self:
        """Return the hub model of a bundle.

        Args:
            bundle: A trained model, from ``load_bundle``, or a folder that ``gtpool train`` wrote.
            licence: The hub's name of the licence, such as "mit"; by default the card has none.
        """
        found = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
        if licence is not None:
            found = found._replace(about={**found.about, "license": licence})
        return cls(found)

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride] - nothing is ignored
        cls,
        pretrained_model_name_or_path: Path | str,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Load a model from a folder or from the hub.

        Args:
            pretrained_model_name_or_path: A folder, or "owner/name" on the hub; a ``Path`` is
                always a folder.
            force_download: Download files again that are in the cache.
            token: Access token for a private model; by default that of ``hf auth login``.
            cache_dir: Cache folder of the hub.
            local_files_only: Use the cache only, without network access.
            revision: A branch, tag or commit; by default the newest.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir() and isinstance(pretrained_model_name_or_path, str):
            folder = Path(
                snapshot_download(
                    pretrained_model_name_or_path,
                    allow_patterns=list(FILES),
                    force_download=force_download,
                    token=token,
                    cache_dir=cache_dir,
                    local_files_only=local_files_only,
                    revision=revision,
                )
            )
        return cls(load_bundle(folder))

    def save_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride] - as above
        self, save_directory: Path | str, *, config: None = None, model_card_kwargs: None = None
    ) -> None:
        """Write the bundle; a folder with any other file is an error.

        Args:
            save_directory: The folder, created if necessary.
            config: Must be None: the bundle has its own.
            model_card_kwargs: Must be None: the card is made from the bundle.
        """
        for name, value in {"config": config, "model_card_kwargs": model_card_kwargs}.items():
            if value is not None:
                raise ValueError(f"{name} must be None: it comes from the bundle's about")
        model, about, _, blend, calibration, fingerprints = self.bundle
        save_bundle(save_directory, model, about, blend, calibration, fingerprints)

    def generate_model_card(self) -> ModelCard:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the card that is saved with the model."""
        model, about, _, blend, calibration, _ = self.bundle
        return ModelCard(model_card(model, about, blend, calibration))
