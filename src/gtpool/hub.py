"""Bundles on Hugging Face's hub, by the hub's own mixin; needs the extra ``hub``."""

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

    Its files are those of a bundle, so that a folder of one is a folder of the other, and
    ``gtpool predict`` takes what was loaded from the hub. Reading and writing are the bundle's own:
    whole or not at all, checked, no pickle. The mixin's would delete a ``config.json`` before it
    writes, and trust one before it is checked.

    Args:
        bundle: What ``load_bundle`` gave.

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
        """Take a model that is trained.

        Args:
            bundle: What ``load_bundle`` gave, or a folder that ``gtpool train`` wrote.
            licence: Under which it is published, by the hub's name for it, such as "mit"; without
                one the card names none.
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
            force_download: Download what is in the cache, too.
            token: Of the hub, for a model that is not public; by default that of ``hf auth login``.
            cache_dir: Where downloads are kept.
            local_files_only: Ask no one: the cache must have it.
            revision: A branch, a tag or a commit; by default the newest.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir() and isinstance(pretrained_model_name_or_path, str):
            folder = Path(
                snapshot_download(
                    pretrained_model_name_or_path,
                    allow_patterns=list(FILES),  # whatever else lies there is not ours to fetch
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
        """Write the bundle; a folder with anything else in it is refused.

        Args:
            save_directory: Where to; made if it is not there.
            config: Refused: the bundle has its own.
            model_card_kwargs: Refused: the card says what the bundle holds.
        """
        for name, value in {"config": config, "model_card_kwargs": model_card_kwargs}.items():
            if value is not None:
                raise ValueError(f"{name} cannot be given: a bundle says it itself, in about")
        save_bundle(save_directory, self.bundle.model, self.bundle.about)

    def generate_model_card(self) -> ModelCard:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Give the card that is saved with the model."""
        return ModelCard(model_card(self.bundle.model, self.bundle.about))
